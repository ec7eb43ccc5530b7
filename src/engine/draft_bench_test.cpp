// What `outrider bench mtp` counts: scripted acceptance is what was scripted, every way answers as plain decoding does,
// estimates have the values of formulas worked by hand.
#include "engine/draft_bench.h"

#include <gtest/gtest.h>

#include "engine/draft_readings.h"

namespace outrider {
namespace {

LoadOptions small_model() {
  LoadOptions options;
  options.model = OUTRIDER_SOURCE_DIR "/models/tiny-qwen3_5-mtp";
  options.threads = 1;
  options.panels = PanelUse::off;
  return options;
}

DraftBench::Measured measure(const std::vector<double>& acceptance, const std::vector<DraftWay>& ways,
                             std::int64_t rows) {
  DraftBench bench(small_model(), {ways, {rows}, 2, acceptance});
  return bench.measure(rows, {});
}

TEST(ScriptedAcceptance, LetsTheShareOfEachPlaceStand) {
  const std::vector<double> rates = {0.85, 0.67, 0.52};
  std::vector<std::int32_t> answer(4000);
  for (std::size_t i = 0; i < answer.size(); ++i) answer[i] = static_cast<std::int32_t>(i * 7 % 50);
  ScriptedAcceptance script(rates, answer, 50);
  EngineRow row;
  std::array<std::int64_t, 3> reached{}, stood{};
  for (std::int64_t t = 0; t < 3000; t += 3) {
    row.drafted = 0;
    row.tokens = {1};
    bool right = true;
    for (std::size_t place = 0; place < 3; ++place) {
      const std::int32_t id = script.edit(row, t + static_cast<std::int64_t>(place), 49);
      const bool stands = id == answer[static_cast<std::size_t>(t) + place];
      if (right) ++reached[place];
      if (!right) {
        EXPECT_FALSE(stands) << "behind a wrong proposal";
      }
      right = right && stands;
      if (right) ++stood[place];
      row.tokens.push_back(id);
      ++row.drafted;
    }
  }
  for (std::size_t place = 0; place < 3; ++place)
    EXPECT_NEAR(static_cast<double>(stood[place]), rates[place] * static_cast<double>(reached[place]), 1) << place;
}

TEST(ScriptedAcceptance, LeavesWhatItHasNoScriptFor) {
  const std::vector<std::int32_t> answer = {3, 4};
  ScriptedAcceptance script({1}, answer, 10);
  EngineRow row;
  row.tokens = {1};
  EXPECT_EQ(script.edit(row, 1, 7), 4);
  EXPECT_EQ(script.edit(row, 2, 7), 7) << "beyond the answer";
  row.tokens = {1, 3};
  row.drafted = 1;
  EXPECT_EQ(script.edit(row, 1, 7), 7) << "beyond the places";
}

TEST(DraftBench, CertainProposalsFillEveryRound) {
  const std::vector<DraftWay> ways = {{DraftWay::Kind::fixed, 3}, {DraftWay::Kind::off, 3}};
  const DraftBench::Measured measured = measure({1, 1, 1}, ways, 2);
  EXPECT_EQ(measured.ways[0].accepted_length(), 4);
  EXPECT_EQ(measured.ways[0].tokens, 2 * 2 * 16);
  EXPECT_EQ(measured.ways[0].drafted, (std::vector<std::int64_t>{16, 16, 16}));
  EXPECT_EQ(measured.ways[0].accepted, measured.ways[0].drafted);
  EXPECT_EQ(measured.ways[1].accepted_length(), 1);
  EXPECT_EQ(measured.ways[1].drafted, (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(measured.plain.row_rounds, measured.plain.tokens);
  EXPECT_GT(measured.ways[0].draft_ms, 0);
  EXPECT_LE(measured.ways[0].draft_ms + measured.ways[0].verify_ms, measured.ways[0].ms);
}

TEST(DraftBench, AHopelessHeadEmitsOneTokenARound) {
  const DraftBench::Measured measured = measure({0}, {{DraftWay::Kind::fixed, 1}}, 1);
  EXPECT_EQ(measured.ways[0].accepted_length(), 1);
  EXPECT_EQ(measured.ways[0].accepted, std::vector<std::int64_t>{0});
}

TEST(DraftBench, StopsBetweenTurns) {
  DraftBench bench(small_model(), {{{DraftWay::Kind::fixed, 1}}, {1}, 50, {0.5}});
  int asked = 0;
  const DraftBench::Measured measured = bench.measure(1, [&] { return ++asked > 3; });
  EXPECT_EQ(measured.plain.tokens, 2 * 16) << "asked once before the group, then before each turn";
}

TEST(DraftBench, RefusesWhatItCannotMeasure) {
  LoadOptions options = small_model();
  options.memory_budget_bytes = 1 << 20;
  EXPECT_THROW(DraftBench::check(options, {{}, {1}, 1, {1}}), Error);
  options = small_model();
  options.reading.mtp = MtpUse::off;
  EXPECT_THROW(DraftBench::check(options, {{}, {1}, 1, {1}}), Error);
  EXPECT_THROW(check_draft_readings(options, 3), Error);
  options.reading.mtp = MtpUse::automatic;
  DraftBench::check(options, {{}, {1}, 1, {1}});
  check_draft_readings(options, 3);
}

TEST(DraftBench, FindsWhereAGainEnds) {
  const std::vector<std::int64_t> rows = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(rows_where_gain_ends(rows, std::vector{1.5, 1.2, 1.1, 0.8}).value(), 4 + 4 * 0.1 / 0.3);
  EXPECT_DOUBLE_EQ(rows_where_gain_ends(rows, std::vector{1.5, 1.0, 0.5, 0.2}).value(), 2);
  EXPECT_FALSE(rows_where_gain_ends(rows, std::vector{1.5, 1.2, 1.1, 1.0}));
  EXPECT_FALSE(rows_where_gain_ends(rows, std::vector{0.9, 0.8, 0.8, 0.7}));
}

TEST(DraftReadings, RatioAndItsErrorFollowTheFormula) {
  // value 6/10; residuals 4 - 3.6, 0 - 1.2, 2 - 1.2.
  const Estimate e = ratio_over_prompts(std::vector{4.0, 0.0, 2.0}, std::vector{6.0, 2.0, 2.0});
  EXPECT_DOUBLE_EQ(e.value, 0.6);
  EXPECT_NEAR(e.error, std::sqrt(1.5 * (0.16 + 1.44 + 0.64)) / 10, 1e-12);
  EXPECT_EQ(ratio_over_prompts({}, {}).value, 0);
}

DraftReading reading_of(HiddenTap tap, std::vector<RoundCounts> prompts) {
  return {tap, NormCentre::one, true, Refresh::from_target, std::move(prompts)};
}

TEST(DraftReadings, AcceptanceIsConditionalOnThePlacesBefore) {
  const DraftReading reading = reading_of(HiddenTap::pre_norm, {{{2, 3, 5}}, {{2, 3, 5}}});
  EXPECT_DOUBLE_EQ(accepted_at(reading, 0).value, 0.8);
  EXPECT_DOUBLE_EQ(accepted_at(reading, 1).value, 5.0 / 8);
  EXPECT_DOUBLE_EQ(accepted_length(reading).value, (2 * 1 + 3 * 2 + 5 * 3) / 10.0);
  EXPECT_EQ(accepted_length(reading).error, 0) << "two equal prompts";
}

TEST(DraftReadings, ALeadIsClearOnlyBeyondItsError) {
  const DraftReading good = reading_of(HiddenTap::pre_norm, {{{10, 90}}, {{20, 80}}, {{12, 88}}});
  // The same differences at every prompt, however different prompts are: clear. Prompts that disagree: not.
  const DraftReading worse = reading_of(HiddenTap::post_norm, {{{20, 80}}, {{31, 69}}, {{22, 78}}});
  const DraftReading wild = reading_of(HiddenTap::post_norm, {{{60, 40}}, {{0, 100}}, {{30, 70}}});
  const ReadingLead clear = lead_of(std::vector{worse, good}).value();
  EXPECT_EQ(clear.best, "tap pre_norm");
  EXPECT_EQ(clear.second, "tap post_norm");
  EXPECT_NEAR(clear.difference.value, (258.0 - 227.0) / 300, 1e-12);
  EXPECT_TRUE(clear.is_clear());
  EXPECT_FALSE(lead_of(std::vector{wild, good})->is_clear());
  EXPECT_FALSE(lead_of(std::vector{good}));
}

}  // namespace
}  // namespace outrider
