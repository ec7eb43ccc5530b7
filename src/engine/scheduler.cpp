#include "engine/scheduler.h"

#include <algorithm>

#include "device/tensor.h"

namespace outrider {

std::int64_t planned_kv_blocks(std::int64_t prompt_tokens, std::int64_t max_tokens) {
  return (prompt_tokens + max_tokens + 1 + kBlockKeys - 1) / kBlockKeys;
}

std::int64_t largest_max_tokens(std::int64_t prompt_tokens, std::int64_t blocks) {
  return blocks * kBlockKeys - 1 - prompt_tokens;
}

std::vector<std::int64_t> plan_step(std::span<const RowDemand> rows, const ScheduleLimits& limits) {
  std::vector<std::int64_t> tokens(rows.size(), 0);
  std::int64_t prefill = limits.prefill_step_tokens;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].kind == RowDemand::Kind::decode) {
      tokens[i] = rows[i].pending;
    } else {
      tokens[i] = std::min(rows[i].pending, prefill);
      prefill -= tokens[i];
    }
  }
  return tokens;
}

std::vector<std::size_t> admit(std::span<Waiting> queue, Room room) {
  std::vector<std::size_t> admitted;
  std::vector<std::size_t> passed_over;  // too big for now, in order
  for (std::size_t i = 0; i < queue.size() && room.rows > 0; ++i) {
    if (queue[i].blocks <= room.blocks) {
      admitted.push_back(i);
      room.blocks -= queue[i].blocks;
      --room.rows;
      for (const std::size_t waiting : passed_over) ++queue[waiting].overtaken;
    } else {
      passed_over.push_back(i);
    }
    const bool exhausted = std::any_of(passed_over.begin(), passed_over.end(),
                                       [&](std::size_t waiting) { return queue[waiting].overtaken >= kMostOvertakes; });
    if (exhausted) break;
  }
  return admitted;
}

}  // namespace outrider
