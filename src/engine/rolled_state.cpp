#include "engine/rolled_state.h"

namespace outrider {

Refusal step_failed(std::string_view what) {
  return {fmt::format("the engine step failed for this request: {}", what), "", "engine_step_failed", 500};
}

std::optional<Refusal> RowRoll::mask(std::span<std::uint32_t> room, std::span<const std::uint32_t>& allowed) {
  try {
    allowed = mask(room);
  } catch (const std::exception& error) {
    return step_failed(error.what());
  }
  return std::nullopt;
}

std::optional<Refusal> RowRoll::enter(std::int32_t id) {
  try {
    if (advance(id)) return std::nullopt;
  } catch (const std::exception& error) {
    return step_failed(error.what());
  }
  return step_failed(fmt::format("its rolled state refuses the token {}", id));
}

}  // namespace outrider
