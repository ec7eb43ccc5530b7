// Random programs over rows and groups against a naive model: a row is a vector of ids, a block exists when some row
// covers it. After every operation the bytes of every row, the used blocks and the privacy of writable blocks hold.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "state/row_group.h"
#include "state/test_programs.h"
#include "state/test_rows.h"

namespace outrider {
namespace {

enum class Action {
  append,
  reserve,
  write_reserved,
  truncate,
  release,
  clone,
  prefix,
  extract,
  drop,
  merge,
  filter,
  begin,
  commit,
  rollback
};
constexpr int kActions = static_cast<int>(Action::rollback) + 1;

// A row with its model. Reserved positions have no ids.
struct Pair {
  KvRow row;
  RowModel ids;
  std::int64_t reserved = 0;
};

class Machine {
 public:
  void apply(const ProgramStep& step) {
    a_ = std::get<1>(step);
    b_ = std::get<2>(step);
    switch (static_cast<Action>(std::get<0>(step))) {
      case Action::append:
        return append();
      case Action::reserve:
        return reserve();
      case Action::write_reserved:
        return write_reserved();
      case Action::truncate:
        return truncate();
      case Action::release:
        return release();
      case Action::clone:
        return share(std::nullopt);
      case Action::prefix:
        return share(b_);
      case Action::extract:
        return extract();
      case Action::drop:
        return drop();
      case Action::merge:
        return merge();
      case Action::filter:
        return filter();
      case Action::begin:
        return begin();
      case Action::commit:
        return commit();
      case Action::rollback:
        return rollback();
    }
  }

  void check() const {
    std::set<const std::byte*> blocks;
    const auto look = [&](const KvRow& row, const RowModel& ids) {
      REQUIRE(holds(row, layout_, ids));
      blocks.insert(row.blocks().begin(), row.blocks().end());
    };
    for (const Pair& pair : rows_) {
      look(pair.row, pair.ids);
      REQUIRE(std::ssize(pair.row.blocks()) >= (pair.row.length() + pair.reserved + 63) / 64);
    }
    REQUIRE(group_.row_count() == std::ssize(group_ids_));
    for (std::int64_t r = 0; r < group_.row_count(); ++r) look(group_.row(r), group_ids_[static_cast<std::size_t>(r)]);
    REQUIRE(pool_.used_blocks() == std::ssize(blocks));
    REQUIRE(pool_.used_blocks() <= pool_.capacity_blocks());
  }

 private:
  // Runs an operation that the full pool may refuse; then nothing may have changed, which check() sees.
  template <class Operation>
  bool allowed(Operation operation) {
    const std::int64_t used = pool_.used_blocks();
    try {
      operation();
      return true;
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::memory);
      REQUIRE(pool_.used_blocks() == used);
      return false;
    }
  }
  Pair& pick() { return rows_[a_ % rows_.size()]; }
  RowModel fresh_ids() {
    const RowModel ids = ids_from(next_id_, b_ % 90);
    next_id_ += 90;
    return ids;
  }

  void append() {
    // Of a single row or, with the same chance, of a row of the group.
    if (a_ % 2 == 0 && group_.row_count() > 0) {
      const std::size_t r = a_ / 2 % group_ids_.size();
      const RowModel ids = fresh_ids();
      if (allowed([&] { append_ids(group_.row(static_cast<std::int64_t>(r)), layout_, ids); }))
        group_ids_[r] = joined(group_ids_[r], ids);
      return;
    }
    if (rows_.size() < 6 && a_ % 3 == 0) rows_.push_back({KvRow(pool_), {}, 0});
    if (rows_.empty()) return;
    Pair& pair = pick();
    const RowModel ids = fresh_ids();
    if (!allowed([&] { append_ids(pair.row, layout_, ids); })) return;
    pair.ids = joined(pair.ids, ids);
    pair.reserved = std::max<std::int64_t>(pair.reserved - std::ssize(ids), 0);
  }
  void reserve() {
    if (rows_.empty()) return;
    Pair& pair = pick();
    const std::int64_t tokens = b_ % 150;
    if (allowed([&] { pair.row.reserve(tokens); })) pair.reserved = std::max(pair.reserved, tokens);
  }
  // What a step does: reserve, write through blocks(), publish a part.
  void write_reserved() {
    if (rows_.empty()) return;
    Pair& pair = pick();
    const std::int64_t tokens = 1 + b_ % 70;
    if (!allowed([&] { pair.row.reserve(tokens); })) return;
    pair.reserved = std::max(pair.reserved, tokens);
    const RowModel ids = ids_from(next_id_, tokens);
    next_id_ += 90;
    for (std::int64_t i = 0; i < tokens; ++i) write_position(pair.row, ids[static_cast<std::size_t>(i)], i);
    const std::int64_t published = b_ / 70 % (tokens + 1);
    pair.row.advance(published);
    pair.reserved -= published;
    pair.ids = joined(pair.ids, first_of(ids, published));
  }
  void write_position(KvRow& row, std::uint32_t id, std::int64_t ahead) {
    const std::int64_t p = row.length() + ahead;
    std::byte* block = row.blocks()[static_cast<std::size_t>(p / 64)];
    for (std::int64_t layer = 0; layer < layout_.layers; ++layer)
      for (std::int64_t i = 0; i < layout_.kv_heads * layout_.head_width; ++i) {
        const std::int64_t head = i / layout_.head_width;
        const std::int64_t d = i % layout_.head_width;
        auto* k = reinterpret_cast<std::uint16_t*>(block + layout_.k_offset(layer, head));
        auto* v = reinterpret_cast<std::uint16_t*>(block + layout_.v_offset(layer, head));
        k[d * 64 + p % 64] = static_cast<std::uint16_t>(test_value(id, layer, i, KvPlane::k));
        v[p % 64 * layout_.head_width + d] = static_cast<std::uint16_t>(test_value(id, layer, i, KvPlane::v));
      }
  }
  void truncate() {
    if (rows_.empty()) return;
    Pair& pair = pick();
    pair.ids = first_of(pair.ids, b_ % (std::ssize(pair.ids) + 1));
    pair.row.truncate(std::ssize(pair.ids));
    pair.reserved = 0;
    REQUIRE(std::ssize(pair.row.blocks()) == (pair.row.length() + 63) / 64);
  }
  void release() {
    if (rows_.empty()) return;
    Pair& pair = pick();
    pair.row.release_reserved();
    pair.reserved = 0;
    REQUIRE(std::ssize(pair.row.blocks()) == (pair.row.length() + 63) / 64);
  }
  void share(std::optional<std::uint32_t> length) {
    if (rows_.empty() || rows_.size() >= 6) return;
    const Pair& from = pick();
    const std::int64_t n = length ? *length % (std::ssize(from.ids) + 1) : std::ssize(from.ids);
    const std::int64_t used = pool_.used_blocks();
    Pair made{length ? from.row.prefix(n) : from.row.clone(), first_of(from.ids, n), 0};
    REQUIRE(pool_.used_blocks() == used);
    rows_.push_back(std::move(made));
  }
  void extract() {
    if (rows_.empty() || rows_.size() >= 6) return;
    const Pair& from = pick();
    allowed([&] {
      Pair made{from.row.extract(), from.ids, 0};
      for (std::byte* block : made.row.blocks())
        for (std::byte* other : from.row.blocks()) REQUIRE(block != other);
      rows_.push_back(std::move(made));
    });
  }
  void drop() {
    if (!rows_.empty()) rows_.erase(rows_.begin() + a_ % rows_.size());
  }
  void merge() {
    if (group_.in_round()) return;
    std::vector<RowSource<KvRow>> sources;
    std::vector<RowModel> models;
    const auto add_group = [&] {
      sources.emplace_back(group_);
      models.insert(models.end(), group_ids_.begin(), group_ids_.end());
    };
    if (a_ % 3 == 0) add_group();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if ((b_ >> i) % 2 == 0) continue;
      sources.emplace_back(rows_[i].row);
      models.push_back(rows_[i].ids);
    }
    if (a_ % 3 == 1) add_group();
    if (models.size() > 8) return;
    group_.merge_rows(sources);
    group_ids_ = models;
  }
  void filter() {
    if (group_.in_round()) return;
    std::vector<std::int64_t> keep;
    for (std::int64_t r = 0; r < group_.row_count(); ++r)
      if ((b_ >> r) % 4 != 0) keep.push_back(r);
    if (!keep.empty()) std::rotate(keep.begin(), keep.begin() + a_ % keep.size(), keep.end());
    if (a_ % 2 == 0) std::reverse(keep.begin(), keep.end());
    std::vector<RowModel> models;
    for (const std::int64_t r : keep) models.push_back(group_ids_[static_cast<std::size_t>(r)]);
    group_.filter_rows(keep);
    group_ids_ = models;
  }
  void begin() {
    if (group_.in_round()) return;
    group_.round_begin();
    begin_ids_ = group_ids_;
  }
  void commit() {
    if (group_.in_round()) group_.round_commit();
  }
  void rollback() {
    if (!group_.in_round()) return;
    std::vector<std::int64_t> keep;
    for (std::size_t r = 0; r < group_ids_.size(); ++r) {
      const std::int64_t begun = std::ssize(begin_ids_[r]);
      const std::int64_t appended = std::ssize(group_ids_[r]) - begun;
      keep.push_back((a_ >> r) % (appended + 1));
      group_ids_[r] = first_of(group_ids_[r], begun + keep.back());
    }
    group_.round_rollback(keep);
  }

  KvLayout layout_ = {1, 2, 3, FloatType::f16};
  KvPool pool_{layout_, 24};  // small enough to be full now and then
  std::vector<Pair> rows_;
  RowGroup<KvRow> group_;
  std::vector<RowModel> group_ids_;
  std::vector<RowModel> begin_ids_;
  std::uint32_t next_id_ = 1;
  std::uint32_t a_ = 0;
  std::uint32_t b_ = 0;
};

RC_GTEST_PROP(KvRows, EveryRandomProgramGivesTheModelsBytes, ()) { run_random_program<Machine>(kActions); }

TEST(KvRows, ALongProgramGivesTheModelsBytes) { run_long_program<Machine>(kActions, 20260101); }

}  // namespace
}  // namespace outrider
