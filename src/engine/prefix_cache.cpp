#include "engine/prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace outrider {
namespace {

constexpr std::size_t kLatestMarks = 4;

std::int64_t on_grid(std::int64_t position) { return position / kBlockKeys * kBlockKeys; }

}  // namespace

std::string prefix_model_key(std::string_view files, Precision precision, const Model& model) {
  const Declaration& graph = model.declaration();
  const NativeDraft* head = model.native_draft();
  return fmt::format("numerics {}; files {}; {}; kv {} layers, {} heads of {}, {} bytes a block; head {}",
                     kNumericsVersion, files, precision == Precision::f32 ? "f32" : "packed", graph.kv.layers,
                     graph.kv.kv_heads, graph.kv.head_width, graph.kv.block_bytes(),
                     head != nullptr ? head->identity : "none");
}

std::vector<std::int64_t> checkpoint_positions(std::int64_t prompt_tokens, std::span<const std::int64_t> marks,
                                               std::int64_t most) {
  const std::int64_t last = on_grid(prompt_tokens - 1);
  std::vector<std::int64_t> positions;
  const auto add = [&](std::int64_t position) {
    const std::int64_t at = on_grid(position);
    const bool known = std::find(positions.begin(), positions.end(), at) != positions.end();
    if (at > 0 && at <= last && !known && std::ssize(positions) < most) positions.push_back(at);
  };
  add(last);
  for (std::size_t i = 0; i < std::min(marks.size(), kLatestMarks); ++i) add(marks[marks.size() - 1 - i]);
  if (!marks.empty()) add(marks.front());
  for (std::int64_t distance = kFirstSpacing; distance < last; distance *= 2) add(last - distance);
  std::sort(positions.begin(), positions.end());
  return positions;
}

PrefixParts PrefixCache::parts_of(const Model& model, const SpeculationLimits& limits) {
  const Declaration& graph = model.declaration();
  PrefixParts parts;
  parts.block_bytes = graph.kv.block_bytes();
  parts.draft_block_bytes = Speculation::block_bytes(model, limits);
  parts.hidden_width = parts.draft_block_bytes > 0 ? graph.width : 0;
  parts.slot_bytes = graph.recurrent.layers > 0 ? graph.recurrent.slot_bytes() : 0;
  return parts;
}

PrefixCache::PrefixCache(const Model& model, StatePool& pool, Speculation* speculation, const PrefixParts& parts,
                         const PrefixCapacity& capacity, std::string model_key)
    : model_(model), pool_(pool), speculation_(speculation), model_key_(std::move(model_key)) {
  store_.emplace(pool, speculation != nullptr ? speculation->draft_pool() : nullptr, parts, capacity);
}

// Once the draft head is given up, states are stored without its part: what had one begins anew.
void PrefixCache::forget_head() {
  if (store_->parts().hidden_width == 0 || speculation_->has_head()) return;
  PrefixParts parts = store_->parts();
  const PrefixCapacity capacity = store_->capacity();
  parts.draft_block_bytes = 0;
  parts.hidden_width = 0;
  store_.emplace(pool_, nullptr, parts, capacity);
}

void PrefixCache::begin(EngineRow& row) noexcept {
  row.prefix.reset();
  row.draft_start.reset();
  row.cached_tokens = 0;
  if (!row.request.cache_prompt || row.request.want != Want::generate) return;
  try {
    restore(row);
  } catch (const std::exception& error) {
    give_up(row, "begins without its stored prefix", error);
  }
}

void PrefixCache::give_up(const EngineRow& row, std::string_view what, const std::exception& error) noexcept {
  ++failures_;
  try {
    log(LogLevel::warning, "request {} {}: {}", row.id, what, error.what());
  } catch (const std::exception&) {  // no memory for the line
  }
}

void PrefixCache::restore(EngineRow& row) {
  const std::string key = fmt::format("{}; length class {}", model_key_, model_.length_class(row.planned_tokens));
  PrefixProgress progress{PrefixChain(prefix_root(key, {})), {}, {}, 0, 0};
  const std::int64_t usable = (row.prompt_tokens - 1) / kBlockKeys;
  const auto tokens = std::span<const std::int32_t>(row.tokens).first(static_cast<std::size_t>(usable * kBlockKeys));
  std::optional<PrefixStore::Hit> hit = store_->restore(progress.chain.keys(tokens, usable), tokens);
  const std::int64_t restored = hit ? hit->tokens : 0;
  progress.offered = restored / kBlockKeys;

  if (!store_->parts().any_block()) {
    // Whole entries: no farther than the store's blocks reach.
    const std::int64_t reach = std::min(row.prompt_tokens, store_->capacity().blocks * kBlockKeys + 1);
    std::vector<std::int64_t> marks = row.request.prefix_marks;
    std::erase_if(marks, [&](std::int64_t mark) { return mark >= reach; });
    progress.checkpoints = checkpoint_positions(reach, marks, store_->capacity().checkpoints);
    std::erase_if(progress.checkpoints, [&](std::int64_t position) { return position <= restored; });
  }
  std::optional<MtpState> draft;
  if (hit && hit->draft) {
    draft.emplace(
        MtpState{std::move(*hit->draft), AlignedBuffer(hit->hidden.size_bytes(), MemoryPart::kv), restored - 1});
    std::memcpy(draft->hidden.data(), hit->hidden.data(), hit->hidden.size_bytes());
  }
  // All that can fail is done.
  if (hit) row.state = std::move(hit->row);
  row.draft_start = std::move(draft);
  row.cached_tokens = restored;
  row.prefix = std::move(progress);
}

void PrefixCache::plan(std::span<const Span> spans) {
  forget_head();
  std::int64_t wanted = 0;
  for (const auto& [row, tokens] : spans) {
    if (!row->prefix) continue;
    PrefixProgress& progress = *row->prefix;
    progress.due.clear();
    if (store_->parts().any_block()) continue;
    const std::int64_t begin = row->state->length(), end = begin + tokens;
    for (const std::int64_t position : progress.checkpoints)
      if (position > begin && position <= end) progress.due.push_back(position);
    // Of the answer the last block it reaches; the end of a prompt of whole blocks is the first such position.
    const std::int64_t of_answer = on_grid(end);
    if (of_answer > begin && of_answer >= row->prompt_tokens) progress.due.push_back(of_answer);
    wanted += std::ssize(progress.due);
  }
  std::int64_t room = wanted > 0 ? store_->make_room_for_checkpoints(wanted) : 0;
  for (const auto& [row, tokens] : spans) {
    if (!row->prefix) continue;
    std::vector<std::int64_t>& due = row->prefix->due;
    // The last one reaches farthest.
    if (std::ssize(due) > room) due.erase(due.begin(), due.end() - room);
    room -= std::ssize(due);
  }
}

void PrefixCache::publish(const Step& step, EngineRow& row, std::int64_t position, Tensor hiddens) noexcept {
  if (!row.prefix) return;
  try {
    offer(step, row, position, hiddens);
  } catch (const std::exception& error) {
    give_up(row, "leaves no prefix behind in this step", error);
  }
  row.prefix->due.clear();
  row.state->drop_checkpoints();
}

void PrefixCache::offer(const Step& step, EngineRow& row, std::int64_t position, Tensor hiddens) {
  PrefixProgress& progress = *row.prefix;
  const PrefixParts& parts = store_->parts();
  std::vector<PrefixCheckpoint> checkpoints;
  for (const std::int64_t at : progress.due) {
    if (at > row.state->length()) break;  // behind drafts that did not stand
    const float* hidden = parts.hidden_width > 0 ? hiddens.row(at - 1 - position) : nullptr;
    checkpoints.push_back({at, {hidden, static_cast<std::size_t>(parts.hidden_width)}});
  }
  std::int64_t end = on_grid(row.state->length());
  if (!parts.any_block()) end = checkpoints.empty() ? 0 : checkpoints.back().position;
  const std::int64_t blocks = end / kBlockKeys;
  if (blocks <= progress.offered) return;
  std::optional<KvRow> draft;
  if (parts.hidden_width > 0) {
    draft = speculation_->draft_prefix(step, row, end);
    if (!draft) return;
  }
  const auto tokens = std::span<const std::int32_t>(row.tokens).first(static_cast<std::size_t>(end));
  PrefixOffer offer;
  offer.keys = progress.chain.keys(tokens, blocks);
  offer.tokens = tokens;
  offer.row = &*row.state;
  offer.draft = draft ? &*draft : nullptr;
  offer.checkpoints = checkpoints;
  offer.superseded = end >= row.prompt_tokens ? progress.last_of_answer : 0;
  bool left_end = false;
  offer.left_end = &left_end;
  store_->prepare_publish(offer).commit();
  progress.offered = blocks;
  // Only what this row itself has left behind may go when it gets farther.
  if (end >= row.prompt_tokens) progress.last_of_answer = left_end ? end : 0;
}

}  // namespace outrider
