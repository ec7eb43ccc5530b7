// For the tests of the prefix store: stores of every kind, and rows whose state follows from their ids.
#pragma once

#include <memory>
#include <vector>

#include "state/prefix_store.h"
#include "state/test_recurrent.h"

namespace outrider {

enum class StoreKind { plain, hybrid, hybrid_with_head };

// A row whose first tokens are offered, with its draft KV.
struct OfferedRow {
  StateRow state;
  std::optional<KvRow> draft;
  RowModel ids;
};

// Pools, a store, and what makes and checks rows of them.
class PrefixRig {
 public:
  static constexpr std::int64_t kWidth = 3;

  PrefixRig(StoreKind kind, std::int64_t blocks, std::int64_t checkpoints, std::int64_t row_blocks = 200)
      : kind_(kind),
        layout_{test_layout(), kind == StoreKind::plain ? RecurrentLayout{} : test_recurrent_layout()},
        parts_(parts_of(kind, layout_)),
        pool_(layout_, {row_blocks, blocks, {row_blocks, 0, 0, checkpoints}}),
        draft_pool_(draft_layout(), row_blocks, blocks),
        store_(std::make_unique<PrefixStore>(pool_, has_head() ? &draft_pool_ : nullptr, parts_,
                                             PrefixCapacity{blocks, checkpoints})) {}

  bool has_head() const { return kind_ == StoreKind::hybrid_with_head; }
  bool any_block() const { return parts_.any_block(); }
  PrefixStore& store() { return *store_; }
  void end_store() { store_.reset(); }
  StatePool& pool() { return pool_; }
  KvPool& draft_pool() { return draft_pool_; }
  const PrefixParts& parts() const { return parts_; }
  void trim() {
    pool_.trim();
    draft_pool_.trim();
  }

  static std::vector<std::int32_t> tokens_of(const RowModel& ids) { return {ids.begin(), ids.end()}; }
  static std::vector<float> hidden_at(const RowModel& ids, std::int64_t position) {
    return {static_cast<float>(ids[static_cast<std::size_t>(position - 1)]), static_cast<float>(position), 0.5F};
  }
  static RowModel draft_ids(RowModel ids) {
    for (std::uint32_t& id : ids) id += 100000;
    return ids;
  }

  // A row after `ids`, with a stored state at every multiple of 64.
  OfferedRow row_of(const RowModel& ids) {
    OfferedRow row{StateRow(pool_), std::nullopt, ids};
    extend(row, std::ssize(ids));
    if (has_head()) {
      row.draft.emplace(draft_pool_);
      append_ids(*row.draft, draft_layout(), draft_ids(ids));
    }
    return row;
  }
  // The row runs on to `end` of its ids.
  void extend(OfferedRow& row, std::int64_t end) {
    const std::int64_t begin = row.state.length();
    if (begin == end) return;
    std::vector<std::int64_t> grid;
    for (std::int64_t p = begin / 64 * 64 + 64; p <= end; p += 64) grid.push_back(p);
    const RowModel more(row.ids.begin() + begin, row.ids.begin() + end);
    row.state.reserve(end - begin, {StorePositions::at_end, grid});
    write_step(layout_, row.state.batch_row(0, end - begin, 0), more);
    row.state.advance(end - begin);
  }

  // Offers the row up to the last of `positions`, which become checkpoints where the store keeps any.
  void publish(const OfferedRow& row, const std::vector<std::int64_t>& positions, std::int64_t superseded = 0) {
    prepare(row, positions, superseded).commit();
  }
  PreparedStateChange prepare(const OfferedRow& row, const std::vector<std::int64_t>& positions,
                              std::int64_t superseded = 0, bool* left_end = nullptr) {
    const std::vector<std::int32_t> tokens = tokens_of(row.ids);
    PrefixChain chain(root);
    std::vector<std::vector<float>> hiddens;
    std::vector<PrefixCheckpoint> checkpoints;
    for (const std::int64_t p : positions) {
      hiddens.push_back(has_head() ? hidden_at(row.ids, p) : std::vector<float>());
      checkpoints.push_back({p, hiddens.back()});
    }
    PrefixOffer offer;
    offer.keys = chain.keys(tokens, positions.back() / 64);
    offer.tokens = std::span(tokens).first(static_cast<std::size_t>(positions.back()));
    offer.row = &row.state;
    offer.draft = row.draft ? &*row.draft : nullptr;
    if (!any_block()) offer.checkpoints = checkpoints;
    offer.superseded = superseded;
    offer.left_end = left_end;
    return store_->prepare_publish(offer);
  }

  std::optional<PrefixStore::Hit> restore(const RowModel& ids) {
    const std::vector<std::int32_t> tokens = tokens_of(first_of(ids, std::ssize(ids) / 64 * 64));
    PrefixChain chain(root);
    return store_->restore(chain.keys(tokens, std::ssize(tokens) / 64), tokens);
  }
  // Tokens of the longest boundary of `ids`, every byte of which is what a row of them has; -1 where one is not.
  std::int64_t restored_tokens(const RowModel& ids) {
    const std::optional<PrefixStore::Hit> hit = restore(ids);
    if (!hit) return 0;
    return holds(*hit, ids) ? hit->tokens : -1;
  }
  bool holds(const PrefixStore::Hit& hit, const RowModel& ids) const {
    const RowModel prefix = first_of(ids, hit.tokens);
    if (!outrider::holds(hit.row.kv(), layout_.kv, prefix)) return false;
    if (kind_ != StoreKind::plain && !outrider::holds(*hit.row.recurrent(), prefix)) return false;
    if (!has_head()) return !hit.draft && hit.hidden.empty();
    return outrider::holds(*hit.draft, draft_layout(), draft_ids(prefix)) &&
           std::vector<float>(hit.hidden.begin(), hit.hidden.end()) == hidden_at(ids, hit.tokens);
  }

  Sha256Digest root = prefix_root("test", {});

 private:
  static KvLayout draft_layout() { return {1, 1, 2, FloatType::f16}; }
  static PrefixParts parts_of(StoreKind kind, const StateLayout& layout) {
    PrefixParts parts;
    parts.block_bytes = layout.kv.block_bytes();
    if (kind != StoreKind::plain) parts.slot_bytes = layout.recurrent.slot_bytes();
    if (kind != StoreKind::hybrid_with_head) return parts;
    parts.draft_block_bytes = draft_layout().block_bytes();
    parts.hidden_width = kWidth;
    return parts;
  }

  StoreKind kind_;
  StateLayout layout_;
  PrefixParts parts_;
  StatePool pool_;
  KvPool draft_pool_;
  std::unique_ptr<PrefixStore> store_;
};

}  // namespace outrider
