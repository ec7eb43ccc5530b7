#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace outrider {
namespace {

using testing::ElementsAre;
using Kind = RowDemand::Kind;

TEST(Scheduler, CountsKvBlocksOverPromptAnswerAndThePendingToken) {
  EXPECT_EQ(planned_kv_blocks(1, 0), 1);
  EXPECT_EQ(planned_kv_blocks(60, 3), 1);
  EXPECT_EQ(planned_kv_blocks(60, 4), 2);
  for (const std::int64_t prompt : {1, 63, 64, 200})
    for (const std::int64_t blocks : {4, 5, 9}) {
      const std::int64_t most = largest_max_tokens(prompt, blocks);
      EXPECT_EQ(planned_kv_blocks(prompt, most), blocks);
      EXPECT_EQ(planned_kv_blocks(prompt, most + 1), blocks + 1);
    }
}

// One step from scratch: the rows have had no turn yet.
std::vector<std::int64_t> plan_first(std::vector<RowDemand> rows, const ScheduleLimits& limits) {
  std::int64_t turns = 0;
  for (RowDemand& row : rows) row.turn = ++turns;
  return plan_step(rows, limits, turns);
}

TEST(Scheduler, DecodeRowsAlwaysRunAndPromptsShareTheStepByTurnsOfABlock) {
  const std::vector<RowDemand> rows = {
      {Kind::prompt, 500}, {Kind::decode, 1}, {Kind::prompt, 100}, {Kind::decode, 1}, {Kind::prompt, 9}};
  EXPECT_THAT(plan_first(rows, {.rows = 8, .prefill_step_tokens = 1024}), ElementsAre(500, 1, 100, 1, 9));
  // 64 + 64 + 9, then 64 + 36, then 64 for the first alone, then 51 are left: no whole block.
  EXPECT_THAT(plan_first(rows, {.rows = 8, .prefill_step_tokens = 352}), ElementsAre(192, 1, 100, 1, 9));
  EXPECT_THAT(plan_first(rows, {.rows = 8, .prefill_step_tokens = 64}), ElementsAre(64, 1, 0, 1, 0));
}

TEST(Scheduler, ALonePromptTakesTheWholeStepInBlocksOfTheAbsoluteGrid) {
  const ScheduleLimits limits = {.rows = 8, .prefill_step_tokens = 512};
  EXPECT_THAT(plan_first({{Kind::prompt, 4000}}, limits), ElementsAre(512));
  EXPECT_THAT(plan_first({{Kind::prompt, 300}}, limits), ElementsAre(300));
  EXPECT_THAT(plan_first({{Kind::prompt, 4000, 70}}, limits), ElementsAre(506));  // ends at position 576
  EXPECT_THAT(plan_first({{Kind::prompt, 4000}}, {.rows = 8, .prefill_step_tokens = 500}), ElementsAre(448));
}

TEST(Scheduler, StepsBelowABlockAreCutAsTheyCome) {
  const ScheduleLimits limits = {.rows = 8, .prefill_step_tokens = 7};
  EXPECT_THAT(plan_first({{Kind::prompt, 4000}, {Kind::prompt, 50}}, limits), ElementsAre(7, 0));
  EXPECT_THAT(plan_first({{Kind::prompt, 4}, {Kind::prompt, 50}}, limits), ElementsAre(4, 3));
}

TEST(Scheduler, TheNextStepGoesOnWithWhoWaitedLongest) {
  std::vector<RowDemand> rows = {{Kind::prompt, 1000, 0, 1}, {Kind::prompt, 1000, 0, 2}, {Kind::prompt, 1000, 0, 3}};
  std::int64_t turns = 3;
  const ScheduleLimits limits = {.rows = 8, .prefill_step_tokens = 128};
  EXPECT_THAT(plan_step(rows, limits, turns), ElementsAre(64, 64, 0));
  EXPECT_THAT(plan_step(rows, limits, turns), ElementsAre(64, 0, 64));
  EXPECT_THAT(plan_step(rows, limits, turns), ElementsAre(0, 64, 64));
}

TEST(Scheduler, OnlyTheFirstPromptRowsShareAStep) {
  const std::vector<RowDemand> rows(5, {Kind::prompt, 1000});
  EXPECT_THAT(plan_first(rows, {.rows = 8, .prefill_step_tokens = 512, .prompt_rows = 2}),
              ElementsAre(256, 256, 0, 0, 0));
  EXPECT_THAT(plan_first(std::vector<RowDemand>(10, {Kind::prompt, 1000}), {.rows = 16, .prefill_step_tokens = 512}),
              ElementsAre(64, 64, 64, 64, 64, 64, 64, 64, 0, 0));
}

// A stream of short prompts that come behind a long one must not starve it.
TEST(Scheduler, NewPromptsDoNotPassOneThatWaits) {
  std::vector<RowDemand> rows = {{Kind::prompt, 10000, 0, 1}};
  std::int64_t turns = 1, run = 0;
  const ScheduleLimits limits = {.rows = 8, .prefill_step_tokens = 64};
  for (int step = 0; step < 40; ++step) {
    rows.push_back({Kind::prompt, 64, 0, ++turns});
    const auto tokens = plan_step(rows, limits, turns);
    run += tokens[0];
    for (std::size_t i = rows.size(); i-- > 1;)
      if (tokens[i] > 0) rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
  }
  EXPECT_GE(run, 40 * 64 / 8);  // its eighth at least
}

TEST(Scheduler, AdmitsInOrderWithinRowsAndBlocks) {
  std::vector<Waiting> queue = {{3}, {2}, {2}};
  EXPECT_THAT(admit(queue, {8, 5}), ElementsAre(0, 1));
  EXPECT_THAT(admit(queue, {1, 50}), ElementsAre(0));
  EXPECT_THAT(admit(queue, {0, 50}), ElementsAre());
}

TEST(Scheduler, ABigRequestIsOvertakenEightTimesThenEverybodyWaits) {
  std::vector<Waiting> queue = {{100}};
  for (int i = 0; i < 12; ++i) queue.push_back({1});
  EXPECT_EQ(admit(queue, {20, 50}).size(), static_cast<std::size_t>(kMostOvertakes));
  EXPECT_EQ(queue[0].overtaken, kMostOvertakes);
  EXPECT_THAT(admit(queue, {20, 50}), ElementsAre());
  EXPECT_THAT(admit(queue, {20, 101}), ElementsAre(0, 1));
}

TEST(Scheduler, NeverExceedsItsLimits) {
  EXPECT_TRUE(rc::check([] {
    std::vector<RowDemand> rows;
    const auto sizes = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 400));
    for (const int size : sizes)
      rows.push_back({size % 3 == 0 ? Kind::decode : Kind::prompt, size % 3 == 0 ? 1 : size});
    std::int64_t turns = 0;
    for (RowDemand& row : rows) {
      row.turn = ++turns;
      if (row.kind == Kind::prompt) row.position = 64 * *rc::gen::inRange(0, 3);
    }
    const ScheduleLimits limits = {
        .rows = 64, .prefill_step_tokens = *rc::gen::inRange(1, 600), .prompt_rows = *rc::gen::inRange(1, 10)};
    const bool on_grid = limits.prefill_step_tokens >= 64;
    const auto tokens = plan_step(rows, limits, turns);
    std::int64_t prefill = 0, prompts = 0;
    bool any_waits = false;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      RC_ASSERT(tokens[i] >= 0 && tokens[i] <= rows[i].pending);
      if (rows[i].kind == Kind::decode) {
        RC_ASSERT(tokens[i] == 1);
        continue;
      }
      prefill += tokens[i];
      const bool waits = tokens[i] < rows[i].pending;
      if (++prompts <= limits.prompt_rows)
        any_waits |= waits;
      else
        RC_ASSERT(tokens[i] == 0);
      if (waits && on_grid) RC_ASSERT(tokens[i] % 64 == 0);
    }
    RC_ASSERT(prefill <= limits.prefill_step_tokens);
    // Nothing waits while there is room for another block.
    if (any_waits) RC_ASSERT(limits.prefill_step_tokens - prefill < (on_grid ? 64 : 1));
  }));
}

}  // namespace
}  // namespace outrider
