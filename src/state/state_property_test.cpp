// Random programs over rows of attention and recurrent layers, alone and in groups, against a naive model: a row is a
// vector of ids and a set of stored positions. After every operation the bytes of every row hold, and so do the numbers
// of used blocks and slots.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "state/row_group.h"
#include "state/test_programs.h"
#include "state/test_recurrent.h"

namespace outrider {
namespace {

enum class Action {
  step,
  abandoned_step,
  clone,
  prefix,
  extract,
  drop_checkpoints,
  drop,
  merge,
  filter,
  begin,
  commit,
  rollback
};
constexpr int kActions = static_cast<int>(Action::rollback) + 1;

// What a row must hold. `stored`: positions beside 0 whose state it has, and whether each is a checkpoint.
struct Expected {
  RowModel ids;
  std::map<std::int64_t, bool> stored;

  std::int64_t length() const { return std::ssize(ids); }
  void prune() {
    std::erase_if(stored, [&](const auto& entry) { return !entry.second && entry.first != length(); });
  }
  Expected prefix(std::int64_t n) const {
    Expected out = {first_of(ids, n), stored};
    std::erase_if(out.stored, [&](const auto& entry) { return entry.first > n; });
    return out;
  }
};

struct Pair {
  StateRow row;
  Expected want;
};

class Machine {
 public:
  void apply(const ProgramStep& step) {
    a_ = std::get<1>(step);
    b_ = std::get<2>(step);
    switch (static_cast<Action>(std::get<0>(step))) {
      case Action::step:
        return run(Ending::published);
      case Action::abandoned_step:
        return run(Ending::abandoned);
      case Action::clone:
        return share(Sharing::whole);
      case Action::prefix:
        return share(Sharing::prefix);
      case Action::extract:
        return extract();
      case Action::drop_checkpoints:
        return drop_checkpoints();
      case Action::drop:
        if (!rows_.empty()) rows_.erase(rows_.begin() + a_ % rows_.size());
        return;
      case Action::merge:
        return merge();
      case Action::filter:
        return filter();
      case Action::begin:
        if (group_.in_round()) return;
        group_.round_begin();
        begun_ = wants_;
        return;
      case Action::commit:
        if (!group_.in_round()) return;
        group_.round_commit();
        for (Expected& want : wants_) want.prune();
        return;
      case Action::rollback:
        return rollback();
    }
  }

  void check() const {
    std::set<const std::byte*> blocks, slots, logs;
    const auto look = [&](const StateRow& row, const Expected& want) {
      REQUIRE(holds(row, layout_, want.ids));
      blocks.insert(row.kv().blocks().begin(), row.kv().blocks().end());
      std::vector<std::int64_t> positions;
      for (const auto& [position, checkpoint] : want.stored) positions.push_back(position);
      REQUIRE(row.recurrent()->stored_positions() == positions);
      if (row.in_round()) {
        slots_of_round_ += std::ssize(positions);
        return;
      }
      for (const std::int64_t n : positions) {
        const RecurrentRow prefix = row.recurrent()->prefix(n);
        REQUIRE(holds(prefix, first_of(want.ids, n)));
        const RecurrentAccess access = prefix.access();
        slots.insert(access.read);
        if (access.log.tokens > 0) logs.insert(access.log.data);
      }
    };
    slots_of_round_ = 0;
    for (const Pair& pair : rows_) look(pair.row, pair.want);
    for (std::int64_t r = 0; r < group_.row_count(); ++r) look(group_.row(r), wants_[static_cast<std::size_t>(r)]);
    REQUIRE(group_.row_count() == std::ssize(wants_));
    REQUIRE(pool_.kv().used_blocks() == std::ssize(blocks));
    // Slots and logs of rows in a round cannot be told apart from here: between no and all of them are shared.
    const auto between = [&](std::int64_t used, std::int64_t seen) {
      return used >= seen && used <= seen + slots_of_round_;
    };
    REQUIRE(between(pool_.recurrent()->used_slots(), std::ssize(slots)));
    REQUIRE(between(pool_.recurrent()->used_logs(), std::ssize(logs)));
  }

 private:
  enum class Ending { published, abandoned };
  enum class Sharing { whole, prefix };

  // A step of one row: a window of 1 to 5 tokens, all stored, or a chunk of up to 70; checkpoints at multiples of 8.
  void run(Ending ending) {
    if (rows_.size() < 5 && a_ % 4 == 0) rows_.push_back({StateRow(pool_), {}});
    const bool in_group = a_ % 3 == 0 && group_.row_count() > 0;
    if (!in_group && rows_.empty()) return;
    const std::size_t r = in_group ? a_ / 3 % wants_.size() : a_ / 3 % rows_.size();
    StateRow& row = in_group ? group_.row(static_cast<std::int64_t>(r)) : rows_[r].row;
    Expected& want = in_group ? wants_[r] : rows_[r].want;
    const bool every = b_ % 2 == 0;
    const std::int64_t tokens = 1 + b_ / 2 % (every ? 5 : 70), begin = want.length();
    std::vector<std::int64_t> checkpoints;
    if (b_ % 5 == 0)
      for (std::int64_t position = 8; position < 400; position += 24) checkpoints.push_back(position);
    const RowModel ids = ids_from(next_id_, tokens);
    next_id_ += 90;
    try {
      row.reserve(tokens, {every ? StorePositions::every : StorePositions::at_end, checkpoints});
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::memory);  // then nothing may have changed, which check() sees
      return;
    }
    write_step(layout_, row.batch_row(0, tokens, 0), ids);
    if (ending == Ending::abandoned) return row.release_reserved();
    const std::int64_t kept = every ? b_ / 10 % (tokens + 1) : tokens;
    row.advance(kept);
    if (kept < tokens) row.release_reserved();
    want.ids = joined(want.ids, first_of(ids, kept));
    for (std::int64_t position = begin + 1; position <= begin + kept; ++position) {
      const bool checkpoint = std::binary_search(checkpoints.begin(), checkpoints.end(), position);
      if (every || checkpoint || position == begin + tokens) want.stored[position] = checkpoint;
    }
    if (!row.in_round()) want.prune();
  }

  void share(Sharing sharing) {
    if (rows_.empty() || rows_.size() >= 5) return;
    const Pair& from = rows_[a_ % rows_.size()];
    std::int64_t n = from.want.length();
    if (sharing == Sharing::prefix) {
      const std::vector<std::int64_t> stored = from.row.recurrent()->stored_positions();
      const std::size_t i = b_ % (stored.size() + 1);
      n = i < stored.size() ? stored[i] : 0;
    }
    const std::int64_t used = pool_.recurrent()->used_slots();
    rows_.push_back({sharing == Sharing::whole ? from.row.clone() : from.row.prefix(n), from.want.prefix(n)});
    REQUIRE(pool_.recurrent()->used_slots() == used);
  }

  void extract() {
    if (rows_.empty() || rows_.size() >= 5) return;
    const Pair& from = rows_[a_ % rows_.size()];
    try {
      Pair made = {from.row.extract(), {from.want.ids, {}}};
      if (made.want.length() > 0) made.want.stored[made.want.length()] = false;
      rows_.push_back(std::move(made));
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::memory);
    }
  }

  void drop_checkpoints() {
    if (rows_.empty()) return;
    Pair& pair = rows_[a_ % rows_.size()];
    pair.row.drop_checkpoints();
    for (auto& [position, checkpoint] : pair.want.stored) checkpoint = false;
    pair.want.prune();
  }

  void merge() {
    if (group_.in_round()) return;
    std::vector<RowSource<StateRow>> sources;
    std::vector<Expected> wants;
    if (a_ % 2 == 0) {
      sources.emplace_back(group_);
      wants = wants_;
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if ((b_ >> i) % 2 == 0) continue;
      sources.emplace_back(rows_[i].row);
      wants.push_back(rows_[i].want);
    }
    if (wants.size() > 6) return;
    group_.merge_rows(sources);
    wants_ = wants;
  }

  void filter() {
    if (group_.in_round()) return;
    std::vector<std::int64_t> keep;
    for (std::int64_t r = 0; r < group_.row_count(); ++r)
      if ((b_ >> r) % 4 != 0) keep.push_back(r);
    if (a_ % 2 == 0) std::reverse(keep.begin(), keep.end());
    std::vector<Expected> wants;
    for (const std::int64_t r : keep) wants.push_back(wants_[static_cast<std::size_t>(r)]);
    group_.filter_rows(keep);
    wants_ = wants;
  }

  // Every row to a position that it stored since the round began, or to its begin.
  void rollback() {
    if (!group_.in_round()) return;
    std::vector<std::int64_t> keep;
    for (std::size_t r = 0; r < wants_.size(); ++r) {
      const std::int64_t begin = begun_[r].length();
      std::vector<std::int64_t> choices = {begin};
      for (const auto& [position, checkpoint] : wants_[r].stored)
        if (position > begin) choices.push_back(position);
      const std::int64_t target = choices[(a_ >> r) % choices.size()];
      keep.push_back(target - begin);
      wants_[r] = wants_[r].prefix(target);
      wants_[r].prune();
    }
    group_.round_rollback(keep);
  }

  StateLayout layout_ = {{1, 2, 3, FloatType::f16}, test_recurrent_layout()};
  StatePool pool_{layout_, {40, 0, {20, 12, 4}}};  // small enough to be full now and then
  std::vector<Pair> rows_;
  RowGroup<StateRow> group_;
  std::vector<Expected> wants_, begun_;
  mutable std::int64_t slots_of_round_ = 0;
  std::uint32_t next_id_ = 1;
  std::uint32_t a_ = 0;
  std::uint32_t b_ = 0;
};

RC_GTEST_PROP(StateRows, EveryRandomProgramGivesTheModelsBytes, ()) { run_random_program<Machine>(kActions); }

TEST(StateRows, ALongProgramGivesTheModelsBytes) { run_long_program<Machine>(kActions, 20261130); }

}  // namespace
}  // namespace outrider
