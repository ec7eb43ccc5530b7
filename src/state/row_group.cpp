#include "state/row_group.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/failure_injection.h"

namespace outrider {

// The rows after the change, built aside; commit swaps them in and keeps the old ones until dispose.
template <class Row>
class RowGroup<Row>::MergeChange : public StateChange {
 public:
  MergeChange(RowGroup& group, std::vector<Row> rows)
      : group_(group), version_(group.version_), rows_(std::move(rows)) {}
  void commit() noexcept override {
    OUTRIDER_CHECK(group_.version_ == version_ && !group_.in_round_, "the group changed after prepare_merge");
    group_.rows_.swap(rows_);
    ++group_.version_;
  }
  void dispose() noexcept override { rows_.clear(); }

 private:
  RowGroup& group_;
  std::uint64_t version_;
  std::vector<Row> rows_;
};

// Room for the kept rows; commit moves them into it and keeps the retired ones until dispose.
template <class Row>
class RowGroup<Row>::FilterChange : public StateChange {
 public:
  FilterChange(RowGroup& group, std::span<const std::int64_t> keep)
      : group_(group), version_(group.version_), keep_(keep.begin(), keep.end()) {
    rows_.reserve(keep.size());
  }
  void commit() noexcept override {
    OUTRIDER_CHECK(group_.version_ == version_ && !group_.in_round_, "the group changed after prepare_filter");
    for (const std::int64_t r : keep_) rows_.push_back(std::move(group_.rows_[static_cast<std::size_t>(r)]));
    group_.rows_.swap(rows_);
    ++group_.version_;
  }
  void dispose() noexcept override { rows_.clear(); }

 private:
  RowGroup& group_;
  std::uint64_t version_;
  std::vector<std::int64_t> keep_;
  std::vector<Row> rows_;
};

template <class Row>
std::size_t RowGroup<Row>::checked(std::int64_t r) const {
  OUTRIDER_CHECK(r >= 0 && r < row_count(), "row {} of {}", r, row_count());
  return static_cast<std::size_t>(r);
}

template <class Row>
void RowGroup<Row>::check_idle(const char* operation) const {
  OUTRIDER_CHECK(!in_round_, "{} inside a round", operation);
}

template <class Row>
PreparedStateChange RowGroup<Row>::prepare_merge(Sources sources) {
  check_idle("merge");
  fallible_point("RowGroup::prepare_merge");
  std::int64_t count = 0;
  const Row* first = nullptr;
  for (const RowSource<Row>& source : sources) {
    for (std::int64_t r = 0; r < source.rows(); ++r) {
      const Row& row = source.row(r);
      OUTRIDER_CHECK(!row.in_round(), "merge of a row inside a round");
      if (first == nullptr) first = &row;
      if (row.signature() != first->signature())
        throw Error(ErrorKind::runtime,
                    fmt::format("rows of unlike kinds cannot join: {} and {}", first->signature(), row.signature()));
      OUTRIDER_CHECK(row.joins(*first), "{} rows of two pools cannot join", row.signature());
    }
    count += source.rows();
  }
  std::vector<Row> rows;
  rows.reserve(static_cast<std::size_t>(count));
  for (const RowSource<Row>& source : sources)
    for (std::int64_t r = 0; r < source.rows(); ++r) rows.push_back(source.row(r).clone());
  return PreparedStateChange(std::make_unique<MergeChange>(*this, std::move(rows)));
}

template <class Row>
PreparedStateChange RowGroup<Row>::prepare_filter(std::span<const std::int64_t> keep) {
  check_idle("filter");
  fallible_point("RowGroup::prepare_filter");
  std::vector<bool> named(rows_.size());
  for (const std::int64_t r : keep) {
    OUTRIDER_CHECK(!named[checked(r)], "filter names row {} twice", r);
    named[checked(r)] = true;
  }
  return PreparedStateChange(std::make_unique<FilterChange>(*this, keep));
}

template <class Row>
void RowGroup<Row>::merge_rows(Sources sources) {
  prepare_merge(sources).commit();
}

template <class Row>
void RowGroup<Row>::filter_rows(std::span<const std::int64_t> keep) {
  prepare_filter(keep).commit();
}

template <class Row>
Row RowGroup<Row>::extract_row(std::int64_t r) const {
  check_idle("extract");
  return row(r).extract();
}

template <class Row>
void RowGroup<Row>::round_begin() noexcept {
  OUTRIDER_CHECK(!in_round_, "round_begin inside a round");
  for (Row& row : rows_) row.round_begin();
  in_round_ = true;
}

template <class Row>
void RowGroup<Row>::round_commit() noexcept {
  OUTRIDER_CHECK(in_round_, "round_commit without round_begin");
  for (Row& row : rows_) row.round_commit();
  in_round_ = false;
}

template <class Row>
void RowGroup<Row>::round_rollback(std::span<const std::int64_t> keep) noexcept {
  OUTRIDER_CHECK(in_round_, "round_rollback without round_begin");
  OUTRIDER_CHECK(std::ssize(keep) == row_count(), "round_rollback names {} of {} rows", keep.size(), row_count());
  for (std::int64_t r = 0; r < row_count(); ++r) row(r).round_rollback(keep[static_cast<std::size_t>(r)]);
  in_round_ = false;
}

template class RowGroup<KvRow>;
template class RowGroup<RecurrentRow>;
template class RowGroup<StateRow>;

}  // namespace outrider
