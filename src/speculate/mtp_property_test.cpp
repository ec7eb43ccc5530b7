// Random schedules of a draft group against a naive model: joins, leaves, reorders, chunks, rounds of every depth,
// cut windows, early ends, aborts, faults, copies. The module's outputs depend on the whole row, so a stale or foreign
// value shows in the proposals; after every operation the bytes and counts of every row are the model's.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <random>
#include <stdexcept>
#include <tuple>

#include "speculate/scripted_draft.h"

namespace outrider {
namespace {

#define REQUIRE(condition)                                                                          \
  do {                                                                                              \
    if (!(condition)) throw std::logic_error("line " + std::to_string(__LINE__) + ": " #condition); \
  } while (false)

constexpr DraftLimits kLimits = {3, 4, 16, 4096};  // several groups and passes in most calls
constexpr std::int32_t kFaultyToken = 4999;

struct Pair {
  float key, value;
  bool exact;
};

// One request as the text of runtime.md 4 has it.
struct ModelRow {
  std::vector<std::int32_t> tokens;  // processed by the target
  std::vector<Pair> draft, carried;
  std::vector<Pair> written;  // of the open round, behind `draft`: carried, pending, chained
  std::vector<std::int32_t> proposals;
  std::int32_t pending = 0;
  int failures = 0;
  bool open = false, headless = false;

  // The target's hidden after the first n of these tokens.
  static float hidden_of(const std::vector<std::int32_t>& ids, std::size_t n) {
    std::uint64_t hash = 17;
    for (std::size_t i = 0; i < n; ++i) hash = mixed(hash + static_cast<std::uint64_t>(ids[i]));
    return static_cast<float>(hash >> 44);
  }
  float hidden() const { return tokens.empty() ? 0 : hidden_of(tokens, tokens.size()); }
  void flush() {
    draft.insert(draft.end(), carried.begin(), carried.end());
    carried.clear();
  }
  std::int64_t exact_length() const {
    std::int64_t n = 0;
    while (n < std::ssize(draft) && draft[static_cast<std::size_t>(n)].exact) ++n;
    return n;
  }
  void leave_round() {
    open = false;
    written.clear();
    proposals.clear();
  }
  void fail() {
    leave_round();
    if (++failures < MtpRows::kMaxFailures) return;
    *this = ModelRow{};
    headless = true;
  }
};

using Command = std::tuple<int, std::uint32_t>;

class Machine {
 public:
  explicit Machine(Refresh refresh)
      : refresh_(refresh), scene_(refresh, ScriptedDraft::Outputs::of_the_whole_row, kLimits) {
    scene_.module.faulty_token = kFaultyToken;
  }

  static constexpr int kActions = 8;
  void apply(const Command& command) {
    random_.seed(std::get<1>(command));
    switch (std::get<0>(command)) {
      case 0:
        return join();
      case 1:
        return filter();
      case 2:
        return prefill();
      case 3:
        return copy();
      default:
        return below(2) == 0 ? draft() : finish();
    }
  }

  std::int64_t longest() const { return longest_; }

  void check() {
    REQUIRE(scene_.group->row_count() == std::ssize(rows_));
    for (std::int64_t r = 0; r < std::ssize(rows_); ++r) {
      const ModelRow& row = rows_[static_cast<std::size_t>(r)];
      const std::vector<float> keys = scene_.keys(r), values = scene_.values(r);
      REQUIRE(keys.size() == row.draft.size());
      longest_ = std::max(longest_, std::ssize(keys));
      for (std::size_t i = 0; i < keys.size(); ++i)
        REQUIRE(keys[i] == row.draft[i].key && values[i] == row.draft[i].value);
      REQUIRE(scene_.group->processed(r) == std::ssize(row.tokens));
      REQUIRE(scene_.group->carried(r) == std::ssize(row.carried));
      REQUIRE(row.tokens.empty() || row.draft.size() + row.carried.size() == row.tokens.size() - 1);
      REQUIRE(scene_.hidden(r) == row.hidden());
      REQUIRE(scene_.group->exact_length(r) == row.exact_length());
      REQUIRE(scene_.group->in_round(r) == row.open);
      REQUIRE(scene_.group->without_head(r) == row.headless);
      const auto proposals = scene_.group->proposals(r);
      REQUIRE(std::equal(proposals.begin(), proposals.end(), row.proposals.begin(), row.proposals.end()));
    }
  }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  std::int32_t token() { return below(40) == 0 ? kFaultyToken : static_cast<std::int32_t>(1 + below(4000)); }
  ModelRow& at(std::int64_t r) { return rows_[static_cast<std::size_t>(r)]; }
  // Indices of some rows of which `fits` holds, in random order.
  template <class Fits>
  std::vector<std::int64_t> some(Fits fits) {
    std::vector<std::int64_t> picked;
    for (std::int64_t r = 0; r < std::ssize(rows_); ++r)
      if (fits(at(r)) && below(4) != 0) picked.push_back(r);
    std::shuffle(picked.begin(), picked.end(), random_);
    return picked;
  }
  static bool idle(const ModelRow& row) { return !row.open; }

  void join() {
    if (rows_.size() > 6) return;
    std::vector<MtpJoin> joins(1 + below(2));
    std::vector<ModelRow> models(joins.size());
    for (std::size_t i = 0; i < joins.size(); ++i) {
      if (stored_.empty() || below(2) == 0) continue;
      const auto& [state, model] = stored_[below(static_cast<std::uint32_t>(stored_.size()))];
      joins[i].state = &state;
      models[i] = model;
    }
    if (below(5) == 0) return scene_.group->prepare_append(joins).dispose();
    scene_.group->append(joins);
    for (ModelRow& model : models) rows_.push_back(std::move(model));
  }
  void filter() {
    std::vector<std::int64_t> keep;
    for (std::int64_t r = 0; r < std::ssize(rows_); ++r)
      if (at(r).open || below(5) != 0) keep.push_back(r);
    std::shuffle(keep.begin(), keep.end(), random_);
    std::vector<ModelRow> kept;
    for (const std::int64_t r : keep) kept.push_back(at(r));
    scene_.group->filter_rows(keep);
    rows_ = std::move(kept);
  }
  void copy() {
    const std::vector<std::int64_t> rows = some(idle);
    if (rows.empty()) return;
    ModelRow& row = at(rows[0]);
    const bool faulty =
        std::any_of(row.carried.begin(), row.carried.end(), [](const Pair& p) { return p.key == kFaultyToken; });
    if (faulty) return;
    const std::int64_t n = std::ssize(row.tokens);
    if (below(2) == 0 && n > 0) {
      const MtpCheckpoint checkpoint = scene_.group->checkpoint(scene_.step(), rows[0]);
      row.flush();
      stored_.emplace_back(scene_.group->restore(checkpoint, n), row);
    } else if (std::optional<MtpState> state = scene_.group->extract_row(scene_.step(), rows[0])) {
      row.flush();
      stored_.emplace_back(std::move(*state), row);
    }
    if (!stored_.empty()) stored_.back().second.failures = 0;
    if (stored_.size() > 4) stored_.erase(stored_.begin());
  }

  // Prompt chunks and consumed continuations.
  void prefill() {
    std::vector<TestFeed> feeds;
    std::vector<ModelRow> after;
    std::vector<RowResult> expected;
    for (const std::int64_t r : some(idle)) {
      TestFeed feed{r, {}, {}};
      ModelRow row = at(r);
      row.flush();
      for (std::uint32_t i = 1 + below(12); i > 0; --i) {
        feed.tokens.push_back(token());
        if (!row.tokens.empty()) row.draft.push_back({static_cast<float>(feed.tokens.back()), row.hidden(), true});
        row.tokens.push_back(feed.tokens.back());
        feed.context.push_back(row.hidden());
      }
      const std::span<const Pair> fresh = std::span(row.draft).subspan(at(r).draft.size());
      expected.push_back(outcome(at(r), fresh));
      after.push_back(ending(r, std::move(row), expected.back()));
      if (below(3) == 0) feed.context.push_back(-1);  // a context that goes on behind the tokens
      feeds.push_back(std::move(feed));
    }
    std::vector<std::int64_t> rows;
    for (const TestFeed& feed : feeds) rows.push_back(feed.row);
    REQUIRE(scene_.prefill(std::move(feeds)) == expected);
    take(rows, std::move(after));
  }
  // A row fails if a pair that is written for it is faulty.
  static RowResult outcome(const ModelRow& row, std::span<const Pair> written) {
    const auto faulty = [](const Pair& pair) { return pair.key == static_cast<float>(kFaultyToken); };
    if (row.headless) return RowResult::without_head;
    return std::any_of(written.begin(), written.end(), faulty) ? RowResult::failed : RowResult::done;
  }
  ModelRow ending(std::int64_t r, ModelRow done, RowResult result) {
    if (result == RowResult::done) return done;
    ModelRow row = at(r);
    if (result == RowResult::failed) row.fail();
    return row;
  }
  void take(const std::vector<std::int64_t>& rows, std::vector<ModelRow> after) {
    for (std::size_t i = 0; i < rows.size(); ++i) at(rows[i]) = std::move(after[i]);
  }

  // A round: the whole chain of each row as the text has it, ending early where the port has nothing.
  void draft() {
    std::vector<MtpAsk> asks;
    std::vector<ModelRow> after;
    std::vector<RowResult> expected;
    const std::uint32_t salt = below(1000);
    const auto noise = [salt](std::int64_t t, float output) {
      return mixed(static_cast<std::uint64_t>(output) + salt + static_cast<std::uint64_t>(t) * 100000);
    };
    const auto choice = [&](std::int64_t t, float output) {
      return noise(t, output) % 7 == 0
                 ? DraftChoice{}
                 : DraftChoice{Picked::proposal, static_cast<std::int32_t>(1 + noise(t, output) % 4000)};
    };
    const std::vector<std::int64_t> rows =
        some([](const ModelRow& row) { return !row.open && (!row.tokens.empty() || row.headless); });
    for (const std::int64_t r : rows) {
      const MtpAsk ask{r, token(), below(5), std::ssize(at(r).tokens)};
      asks.push_back(ask);
      ModelRow row = at(r);
      row.open = true;
      row.pending = ask.pending;
      row.written = row.carried;
      row.written.push_back({static_cast<float>(ask.pending), row.hidden(), true});
      for (std::int64_t place = 0; place < ask.depth; ++place) {
        std::vector<float> keys, values;
        for (const std::vector<Pair>* pairs : {&row.draft, &row.written})
          for (const Pair& pair : *pairs) {
            keys.push_back(pair.key);
            values.push_back(pair.value);
          }
        const float output = scene_.module.output(keys, values);
        const DraftChoice chosen = choice(ask.t + place, output);
        if (chosen.picked == Picked::nothing) break;
        row.proposals.push_back(chosen.id);
        if (place + 1 < ask.depth) row.written.push_back({static_cast<float>(chosen.id), output, false});
      }
      expected.push_back(outcome(at(r), row.written));
      after.push_back(ending(r, std::move(row), expected.back()));
    }
    ScriptedPort port([&](const DraftPick& pick, float output) { return choice(pick.t, output); });
    REQUIRE(scene_.draft(asks, &port) == expected);
    take(rows, std::move(after));
  }

  // Rounds end, some by abort, some prepared and given up; others stay open.
  void finish() {
    const std::vector<std::int64_t> open = some([](const ModelRow& row) { return row.open; });
    std::vector<std::int64_t> aborted, rows;
    for (const std::int64_t r : open) (below(4) == 0 ? aborted : rows).push_back(r);
    scene_.group->abort(aborted);
    for (const std::int64_t r : aborted) at(r).leave_round();
    std::vector<TestVerdict> verdicts;
    std::vector<ModelRow> after;
    std::vector<RowResult> expected;
    for (const std::int64_t r : rows) {
      ModelRow row = at(r);
      const auto window = below(static_cast<std::uint32_t>(row.proposals.size()) + 1);  // m, maybe cut
      const auto accepted = below(window + 1);
      TestVerdict verdict{r, accepted, {}};
      std::vector<std::int32_t> seen = row.tokens;
      for (std::size_t i = 0; i <= window; ++i) {
        seen.push_back(i == 0 ? row.pending : row.proposals[i - 1]);
        verdict.context.push_back(ModelRow::hidden_of(seen, seen.size()));
      }
      const std::span<const Pair> last = judge(row, verdict);
      expected.push_back(outcome(at(r), last));
      after.push_back(ending(r, std::move(row), expected.back()));
      verdicts.push_back(std::move(verdict));
    }
    if (below(5) == 0) return give_up(verdicts, expected, rows, after);
    REQUIRE(scene_.commit(std::move(verdicts)) == expected);
    take(rows, std::move(after));
  }
  // `row` after its round; returns the pairs that the commit itself wrote.
  std::span<const Pair> judge(ModelRow& row, const TestVerdict& verdict) {
    const auto accepted = static_cast<std::size_t>(verdict.accepted);
    const std::size_t depth = row.proposals.size();
    std::size_t fresh = 0;
    const auto truth = [&](std::size_t i) {
      return Pair{static_cast<float>(row.proposals[i]), verdict.context[i], true};
    };
    if (refresh_ == Refresh::from_target) {
      row.draft.insert(row.draft.end(), row.written.begin(), row.written.begin() + std::ssize(row.carried) + 1);
      row.carried.clear();
      for (std::size_t i = 0; i < accepted; ++i) row.carried.push_back(truth(i));
    } else {
      const std::size_t kept = std::min(accepted + 1, std::max<std::size_t>(depth, 1));
      row.draft.insert(row.draft.end(), row.written.begin(), row.written.begin() + static_cast<std::ptrdiff_t>(kept));
      if (depth > 0 && accepted == depth) {
        row.draft.push_back(truth(depth - 1));
        fresh = 1;
      }
    }
    row.tokens.push_back(row.pending);
    row.tokens.insert(row.tokens.end(), row.proposals.begin(), row.proposals.begin() + verdict.accepted);
    row.leave_round();
    return std::span(row.draft).last(fresh);
  }
  // Prepared and disposed: rows are still in their round, but for those that failed.
  void give_up(std::vector<TestVerdict>& rows, const std::vector<RowResult>& expected,
               const std::vector<std::int64_t>& names, std::vector<ModelRow>& after) {
    std::vector<MtpVerdict> verdicts;
    for (TestVerdict& row : rows) verdicts.push_back({row.row, row.accepted, DraftScene::tensor_of(row.context)});
    std::vector<RowResult> results(rows.size());
    scene_.group->prepare_commit(scene_.step(), verdicts, results).dispose();
    REQUIRE(results == expected);
    for (std::size_t i = 0; i < names.size(); ++i)
      if (expected[i] == RowResult::failed) at(names[i]) = after[i];
  }

  Refresh refresh_;
  DraftScene scene_;
  std::vector<ModelRow> rows_;
  std::vector<std::pair<MtpState, ModelRow>> stored_;
  std::mt19937 random_;
  std::int64_t longest_ = 0;
};

void run(Refresh refresh, const std::vector<Command>& commands) {
  Machine machine(refresh);
  for (const Command& command : commands) {
    machine.apply(command);
    machine.check();
  }
}

RC_GTEST_PROP(MtpRows, EveryRandomScheduleGivesTheModelsRows, ()) {
  const auto commands = *rc::gen::scale(
      3.0, rc::gen::container<std::vector<Command>>(rc::gen::tuple(
               rc::gen::inRange(0, Machine::kActions), rc::gen::resize(1000, rc::gen::arbitrary<std::uint32_t>()))));
  run(Refresh::from_target, commands);
  run(Refresh::as_drafted, commands);
}

// The same over one long schedule, which reaches rows of several blocks.
TEST(MtpRows, ALongScheduleGivesTheModelsRows) {
  for (const Refresh refresh : {Refresh::from_target, Refresh::as_drafted}) {
    std::mt19937 next(20260101);
    Machine machine(refresh);
    for (int i = 0; i < 4000; ++i) {
      machine.apply({static_cast<int>(next() % Machine::kActions), static_cast<std::uint32_t>(next())});
      machine.check();
    }
    EXPECT_GT(machine.longest(), 128);
  }
}

}  // namespace
}  // namespace outrider
