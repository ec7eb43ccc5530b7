// A group of rows of one kind, and its rounds (runtime.md 2.2). Index r of a group is the same request everywhere.
//
// A row kind is a move-only class with
//   std::string signature() const;        rows of unlike signatures never join
//   bool joins(const Row&) const;         equal signatures whose rows can stand in one group
//   std::int64_t length() const;
//   Row clone() const; Row extract() const;       sharing, and independent
//   round_begin(), round_commit(), round_rollback(keep), round_appended(), in_round().
// KvRow, RecurrentRow and StateRow are such kinds; how one keeps what a rollback needs (a length, a slot and a log)
// is its own matter.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "base/state_change.h"
#include "state/state_row.h"

namespace outrider {

template <class Row>
class RowGroup;

// One source of merge_rows: a single row or all rows of a group. Borrowed.
template <class Row>
class RowSource {
 public:
  RowSource(const Row& row) : row_(&row) {}  // NOLINT: a source is meant to be written as the row itself
  RowSource(const RowGroup<Row>& group) : group_(&group) {}  // NOLINT
  std::int64_t rows() const { return group_ != nullptr ? group_->row_count() : 1; }
  const Row& row(std::int64_t r) const { return group_ != nullptr ? group_->row(r) : *row_; }

 private:
  const Row* row_ = nullptr;
  const RowGroup<Row>* group_ = nullptr;
};

// Owns its rows. Move-only; it must not move or change between a prepare and its commit. Inside a round rows are only
// appended to: every other operation is a programming error (CHECK).
template <class Row>
class RowGroup {
 public:
  using Sources = std::span<const RowSource<Row>>;

  RowGroup() = default;
  RowGroup(RowGroup&&) noexcept = default;
  RowGroup& operator=(RowGroup&&) noexcept = default;

  std::int64_t row_count() const { return static_cast<std::int64_t>(rows_.size()); }
  const Row& row(std::int64_t r) const { return rows_[checked(r)]; }
  // To append. Other changes of a row inside a round break the round's promise; the row CHECKs them.
  Row& row(std::int64_t r) { return rows_[checked(r)]; }

  // The group's rows become those of the sources in order; the group itself may be one of them. Sources are shared, not
  // changed. Error (runtime) naming both signatures when kinds differ; on any failure the group is unchanged.
  void merge_rows(Sources sources);
  void merge_rows(std::initializer_list<RowSource<Row>> sources) {
    merge_rows(Sources(sources.begin(), sources.size()));
  }
  // Row i becomes the former row keep[i]; rows not named retire. An index twice or out of range is a programming error.
  // On failure the group is unchanged.
  void filter_rows(std::span<const std::int64_t> keep);
  // An independent row that shares nothing with the group.
  Row extract_row(std::int64_t r) const;

  // The same changes prepared for apply_state_changes: all that can fail happens here.
  PreparedStateChange prepare_merge(Sources sources);
  PreparedStateChange prepare_filter(std::span<const std::int64_t> keep);

  // A round over all rows: begin, appends, then commit keeps all or rollback leaves row r keep[r] of what it appended.
  // Cannot fail. Begin inside a round, the others outside one, keep of another size or beyond what was appended: CHECK.
  void round_begin() noexcept;
  void round_commit() noexcept;
  void round_rollback(std::span<const std::int64_t> keep) noexcept;
  bool in_round() const { return in_round_; }

 private:
  class MergeChange;
  class FilterChange;
  std::size_t checked(std::int64_t r) const;
  void check_idle(const char* operation) const;

  std::vector<Row> rows_;
  bool in_round_ = false;
  std::uint64_t version_ = 0;  // grows with every published change, so that a stale commit is caught
};

extern template class RowGroup<KvRow>;
extern template class RowGroup<RecurrentRow>;
extern template class RowGroup<StateRow>;

}  // namespace outrider
