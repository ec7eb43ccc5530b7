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

TEST(Scheduler, DecodeRowsAlwaysRunAndPromptsShareTheStepInOrder) {
  const std::vector<RowDemand> rows = {
      {Kind::prompt, 500}, {Kind::decode, 1}, {Kind::prompt, 100}, {Kind::decode, 1}, {Kind::prompt, 9}};
  EXPECT_THAT(plan_step(rows, {.rows = 8, .prefill_step_tokens = 512, .kv_blocks = 0}), ElementsAre(500, 1, 12, 1, 0));
  EXPECT_THAT(plan_step(rows, {.rows = 8, .prefill_step_tokens = 64, .kv_blocks = 0}), ElementsAre(64, 1, 0, 1, 0));
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
    const std::int64_t step = *rc::gen::inRange(1, 600);
    const auto tokens = plan_step(rows, {.rows = 64, .prefill_step_tokens = step, .kv_blocks = 0});
    std::int64_t prefill = 0;
    bool any_waits = false;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      RC_ASSERT(tokens[i] >= 0 && tokens[i] <= rows[i].pending);
      if (rows[i].kind == Kind::decode) RC_ASSERT(tokens[i] == 1);
      if (rows[i].kind == Kind::prompt) prefill += tokens[i];
      any_waits |= tokens[i] < rows[i].pending;
    }
    RC_ASSERT(prefill <= step);
    if (any_waits) RC_ASSERT(prefill == step);  // nothing waits while there is room
  }));
}

}  // namespace
}  // namespace outrider
