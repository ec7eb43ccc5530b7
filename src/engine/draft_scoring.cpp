#include "engine/draft_scoring.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "speculate/mtp_module.h"
#include "state/kv_row.h"

namespace outrider {
namespace {

std::int64_t chunk_of(std::int64_t tokens, std::int64_t chunk_tokens) {
  return std::min(chunk_tokens, std::max<std::int64_t>(tokens - 1, 1));
}

std::size_t arena_for(const MtpModule& module, const Declaration& model, const Device& device, std::int64_t tokens,
                      std::int64_t chunk) {
  return module.scratch_bytes(device, {.rows = chunk, .depth = 0, .chunk_tokens = chunk, .context_tokens = tokens}) +
         3 * tensor_bytes(chunk, model.width);
}

}  // namespace

std::size_t draft_scoring_bytes(const NativeDraft& draft, const Declaration& model, const Device& device,
                                std::int64_t tokens, std::int64_t chunk_tokens) {
  const MtpModule module(draft, nullptr, model.kv.type);
  return arena_for(module, model, device, tokens, chunk_of(tokens, chunk_tokens)) +
         static_cast<std::size_t>(kv_blocks_for(tokens)) * module.kv_layout().block_bytes();
}

void score_drafts(const Model& model, Device& device, std::span<const std::int32_t> ids, std::span<const float> hiddens,
                  DraftInput input, std::int64_t chunk_tokens, const std::function<void(const DraftScores&)>& deliver) {
  const NativeDraft* draft = model.native_draft();
  if (draft == nullptr)
    throw Error(ErrorKind::usage, "the model has no MTP head to score with", "see `outrider models info`");
  const Declaration& d = model.declaration();
  const auto tokens = static_cast<std::int64_t>(ids.size());
  OUTRIDER_CHECK(static_cast<std::int64_t>(hiddens.size()) == tokens * d.width, "{} hidden values for {} tokens",
                 hiddens.size(), tokens);
  MtpModule module(*draft, nullptr, d.kv.type);
  const std::int64_t chunk = chunk_of(tokens, chunk_tokens);
  Arena arena(arena_for(module, d, device, tokens, chunk));
  KvPool pool(module.kv_layout(), kv_blocks_for(tokens));
  KvRow row(pool);
  // Row p is stored at KV position p + 1; position 0 stays empty (runtime.md section 4).
  row.reserve(1);
  row.advance(1);
  std::vector<std::uint32_t> faults(static_cast<std::size_t>(chunk));
  for (std::int64_t begin = 0; begin + 1 < tokens; begin += chunk) {
    const std::int64_t count = std::min(chunk, tokens - 1 - begin);
    row.reserve(count);
    const BatchRow place{.begin = 0,
                         .end = count,
                         .position = begin + 1,
                         .planned_tokens = tokens,
                         .blocks = row.blocks(),
                         .first_key = 1};
    std::fill(faults.begin(), faults.end(), 0U);
    const Arena::Scope scope(arena);
    const Step step{device, arena, faults.data()};
    const Tensor given = arena.tensor(count, d.width);
    std::copy_n(hiddens.begin() + begin * d.width, count * d.width, given.data);
    const RaggedBatch batch{ids.subspan(static_cast<std::size_t>(begin + 1), static_cast<std::size_t>(count)),
                            {&place, 1}};
    const Tensor out = module.forward(step, batch, input == DraftInput::target ? tapped(step, *draft, given) : given);
    row.advance(count);
    const Tensor logits = arena.tensor(count, d.vocab);
    module.head(step, out, logits);
    if (std::any_of(faults.begin(), faults.end(), [](std::uint32_t bits) { return bits != 0; }))
      throw Error(ErrorKind::runtime,
                  fmt::format("numeric_error in the MTP head at rows {} to {}", begin, begin + count),
                  "the head may be read with wrong norms or a wrong hidden tap, see `outrider models info`");
    deliver({begin,
             {out.data, static_cast<std::size_t>(count * d.width)},
             {logits.data, static_cast<std::size_t>(count * d.vocab)}});
  }
}

}  // namespace outrider
