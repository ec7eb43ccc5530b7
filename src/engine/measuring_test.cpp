#include "engine/measuring.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

// A case that is run by the clock of its script: seconds of run i, the last one for ever.
std::function<double()> script(std::vector<double> seconds, std::vector<std::string>* log = nullptr,
                               std::string name = {}) {
  return [seconds = std::move(seconds), at = std::size_t{0}, log, name = std::move(name)]() mutable {
    if (log != nullptr) log->push_back(name);
    return seconds[std::min(at++, seconds.size() - 1)];
  };
}

BenchCase rate_case(std::string name, std::vector<double> seconds) {
  BenchCase c;
  c.suite = "s";
  c.name = std::move(name);
  c.unit = "tok/s";
  c.run = script(std::move(seconds));
  return c;
}

class MeasuringTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device(1);
  MachineProbe probe_{*device_, std::size_t{1} << 20};
  Rounds rounds_{.count = 3, .probe_seconds = 0, .least_case_seconds = 0.1, .stop = {}};
};

TEST(Median, IsTheMiddleOrTheMeanOfTheTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

TEST_F(MeasuringTest, RunsCasesAndRivalsByTurns) {
  std::vector<std::string> log;
  std::vector<BenchCase> cases = {rate_case("a", {1}), rate_case("b", {1})};
  cases[0].run = script({1}, &log, "a");
  cases[1].run = script({1}, &log, "b");
  cases[0].rivals.push_back({"peer", script({2}, &log, "peer of a")});
  measure_by_turns(cases, probe_, rounds_);
  const std::vector<std::string> round = {"a", "peer of a", "b"};
  std::vector<std::string> expected;
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), round.begin(), round.end());
  EXPECT_EQ(log, expected);
}

TEST_F(MeasuringTest, TakesTheMedianOfTheRounds) {
  const std::vector<BenchCase> cases = {rate_case("a", {0.5, 8, 0.25})};
  const auto rows = measure_by_turns(cases, probe_, rounds_);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_DOUBLE_EQ(rows[0].value, 2);
}

// Short runs are warmed up once and then repeated until there is something to time.
TEST_F(MeasuringTest, RepeatsShortRunsAndLeavesTheFirstOut) {
  rounds_.count = 1;
  std::vector<std::string> log;
  std::vector<BenchCase> cases = {rate_case("a", {})};
  cases[0].run = script({0.09, 0.04}, &log, "a");
  const auto rows = measure_by_turns(cases, probe_, rounds_);
  EXPECT_EQ(log.size(), 1U + 3U);  // 3 * 0.04 reaches 0.1
  EXPECT_NEAR(rows[0].value, 1 / 0.04, 1e-9);
}

TEST_F(MeasuringTest, AStopKeepsWhatWasMeasuredAndLeavesTheRestOut) {
  int asked = 0;
  std::vector<BenchCase> cases = {rate_case("a", {1}), rate_case("b", {1})};
  rounds_.stop = [&asked] { return ++asked > 2; };
  const auto rows = measure_by_turns(cases, probe_, rounds_);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].name, "a");
  asked = 100;
  EXPECT_TRUE(measure_by_turns(cases, probe_, rounds_).empty());
}

TEST(BenchRows, RatesTimesAndSlowdownsCompareWithLimitsInTheirOwnSense) {
  std::vector<BenchCase> cases(3);
  cases[0] = {.suite = "s",
              .name = "one",
              .unit = "ms",
              .quantity = Quantity::time,
              .amount = 1e3,
              .run = {},
              .least_seconds = [](const MachineLimits& m) { return 1 / m.read_gb_per_s; },
              .base = {},
              .rivals = {}};
  cases[1] = {.suite = "s",
              .name = "rate",
              .unit = "tok/s",
              .quantity = Quantity::rate,
              .amount = 8,
              .run = {},
              .least_seconds = [](const MachineLimits& m) { return 2 / m.read_gb_per_s; },
              .base = {},
              .rivals = {}};
  cases[2] = {.suite = "s",
              .name = "slow",
              .unit = "x",
              .quantity = Quantity::slowdown,
              .amount = 1,
              .run = {},
              .least_seconds = [](const MachineLimits& m) { return 1.5 / m.read_gb_per_s; },
              .base = 0,
              .rivals = {}};
  // The machine is twice as slow in the second round: a slowdown is taken round by round and does not see it.
  const std::vector<CaseTimes> times = {{{0.125, 0.25, 0.125}, {}}, {{0.25, 0.5, 0.25}, {}}, {{0.25, 0.5, 0.25}, {}}};
  const auto rows =
      rows_of(cases, times, {.read_gb_per_s = 10, .f32_gmac_per_s = 1, .i16_gmac_per_s = 1, .i8_gmac_per_s = 1});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_DOUBLE_EQ(rows[0].value, 125);
  EXPECT_DOUBLE_EQ(*rows[0].limit, 100);
  EXPECT_DOUBLE_EQ(*rows[0].of_limit, 0.8);
  EXPECT_DOUBLE_EQ(rows[1].value, 32);
  EXPECT_DOUBLE_EQ(*rows[1].limit, 40);
  EXPECT_DOUBLE_EQ(*rows[1].of_limit, 0.8);
  EXPECT_DOUBLE_EQ(rows[2].value, 2);
  EXPECT_DOUBLE_EQ(*rows[2].limit, 1.5);
  EXPECT_DOUBLE_EQ(*rows[2].of_limit, 0.75);
}

TEST(BenchRows, ARatioAboveOneIsAheadOfThePeerInEveryQuantity) {
  std::vector<BenchCase> cases(3);
  cases[0].quantity = Quantity::time;
  cases[1].quantity = Quantity::rate;
  cases[2].quantity = Quantity::slowdown;
  cases[2].base = 0;
  for (BenchCase& c : cases) c.rivals = {{"x", {}}, {"y", {}}};
  const std::vector<CaseTimes> times = {
      {{1}, {{2}, {0.5}}}, {{1}, {{2}, {0.5}}}, {{1.5}, {{6}, {0.625}}}};  // slowdowns 1.5 against 3 and 1.25
  const auto rows = rows_of(cases, times, {});
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_DOUBLE_EQ(*rows[0].ratio, 2);
  EXPECT_DOUBLE_EQ(*rows[1].ratio, 0.5);
  EXPECT_DOUBLE_EQ(*rows[2].ratio, 2);
  EXPECT_DOUBLE_EQ(*rows[3].ratio, 0.5);
  EXPECT_DOUBLE_EQ(*rows[4].peer_value, 3);
  EXPECT_DOUBLE_EQ(*rows[4].ratio, 2);
  EXPECT_DOUBLE_EQ(*rows[5].ratio, 1.25 / 1.5);
  EXPECT_EQ(rows[5].peer, "y");
  EXPECT_FALSE(rows[5].limit);
}

}  // namespace
}  // namespace outrider
