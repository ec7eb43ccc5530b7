// All the state of one request in its model: a KV row of the attention layers and, for hybrid models, a recurrent row,
// which move as one. Rounds, groups and the engine see this kind alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "state/kv_row.h"
#include "state/recurrent_row.h"

namespace outrider {

struct StateLayout {
  KvLayout kv;
  RecurrentLayout recurrent;  // layers 0: the model has no recurrent layers
};

struct StateCapacity {
  std::int64_t kv_blocks = 0;
  // Beyond those, what entries of a prefix store may keep.
  std::int64_t prefix_blocks = 0;
  RecurrentCapacity recurrent = {};  // no matter without recurrent layers
};

// The pools of one model. Outlives its rows and does not move.
class StatePool {
 public:
  StatePool(const StateLayout& layout, const StateCapacity& capacity);

  KvPool& kv() { return kv_; }
  const KvPool& kv() const { return kv_; }
  // Null without recurrent layers.
  RecurrentPool* recurrent() { return recurrent_ ? &*recurrent_ : nullptr; }
  const RecurrentPool* recurrent() const { return recurrent_ ? &*recurrent_ : nullptr; }
  void trim() noexcept;

 private:
  KvPool kv_;
  std::optional<RecurrentPool> recurrent_;
};

// Move-only. Every operation is that of KvRow and RecurrentRow at once: both do it or neither does.
class StateRow {
 public:
  explicit StateRow(StatePool& pool);
  // From parts of equal length, both outside a round.
  StateRow(KvRow kv, std::optional<RecurrentRow> recurrent);

  std::int64_t length() const { return kv_.length(); }
  std::string signature() const;  // "kv:plain", "kv:plain+recurrent"
  bool joins(const StateRow& other) const;
  const KvRow& kv() const { return kv_; }
  const RecurrentRow* recurrent() const { return recurrent_ ? &*recurrent_ : nullptr; }

  // All that can fail of a step of `tokens` >= 1 tokens; on failure the row is unchanged. One reservation at a time
  // where there is a recurrent row.
  void reserve(std::int64_t tokens, const StoreChoice& stores = {});
  // The row's place in a step over its reservation, from flat token `begin` on. Valid until the row changes.
  BatchRow batch_row(std::int64_t begin, std::int64_t tokens, std::int64_t planned_tokens) const;
  void advance(std::int64_t tokens) noexcept;
  void release_reserved() noexcept;

  void round_begin() noexcept;
  void round_commit() noexcept;
  void round_rollback(std::int64_t keep) noexcept;
  bool in_round() const { return kv_.in_round(); }
  std::int64_t round_appended() const { return kv_.round_appended(); }

  // RecurrentRow's; nothing without a recurrent row.
  void drop_checkpoints() noexcept;
  // n: any position, or with a recurrent row 0 or one of its stored_positions().
  StateRow prefix(std::int64_t n) const;
  StateRow clone() const { return prefix(length()); }
  StateRow extract() const;

 private:
  KvRow kv_;
  std::optional<RecurrentRow> recurrent_;
};

}  // namespace outrider
