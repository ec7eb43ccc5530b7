#include "speculate/draft_round.h"

#include <gmock/gmock.h>

#include "base/failure_injection.h"
#include "speculate/scripted_draft.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Floats = std::vector<float>;

// Rows 0 and 1 have processed {1, 2, 3} and {11, 12, 13}.
struct Scene : DraftScene {
  DraftRound round{group.get()};
  ScriptedPort port =
      port_that_proposes([](const DraftPick& pick, float) { return 500 + static_cast<std::int32_t>(pick.t); });
  Scene() {
    append_cold(2);
    prefill_tens({{1, 2, 3}, {11, 12, 13}});
  }
  std::vector<RowResult> draft(const std::vector<DraftRound::Ask>& asks) {
    std::vector<RowResult> results(asks.size());
    round.draft(step(), asks, &port, results);
    return results;
  }
};

TEST(DraftRound, RowsDraftFromTheirTextWhereItRepeatsAndFromTheHeadElsewhere) {
  Scene scene;
  NgramDrafter repeats({2, 4}), fresh({2, 4});
  repeats.append(std::vector<std::int32_t>{7, 8, 9, 6, 7, 8});
  fresh.append(std::vector<std::int32_t>{1, 2, 3, 4});
  scene.draft({{0, 4, 2, 0, {}, &fresh}, {1, 8, 2, 0, {}, &repeats}});
  EXPECT_THAT(scene.round.proposals(0), ElementsAre(500, 501));
  EXPECT_EQ(scene.round.source(0), DraftSource::head);
  EXPECT_THAT(scene.round.proposals(1), ElementsAre(9, 6));
  EXPECT_EQ(scene.round.source(1), DraftSource::text);
  EXPECT_FALSE(scene.group->in_round(1));

  float first[] = {40, 41, 42}, second[] = {80, 90, 60};
  const DraftRound::Verdict verdicts[] = {{1, 1, {second, 3, 1, 1}}, {0, 0, {first, 3, 1, 1}}};
  RowResult results[2];
  scene.round.prepare_commit(scene.step(), verdicts, results).commit();
  EXPECT_THAT(results, ElementsAre(RowResult::done, RowResult::done));
  // Row 1 followed pending and one accepted token by their true hiddens.
  EXPECT_EQ(scene.keys(1), (Floats{12, 13, 8, 9}));
  EXPECT_EQ(scene.values(1), (Floats{110, 120, 130, 80}));
  EXPECT_EQ(scene.hidden(1), 90);
  EXPECT_EQ(scene.keys(0), (Floats{2, 3, 4}));
  EXPECT_EQ(scene.hidden(0), 40);
  scene.round.abort();  // nobody is left in it
  EXPECT_EQ(scene.group->processed(0), 4);
  EXPECT_EQ(scene.group->processed(1), 5);
}

TEST(DraftRound, ForcedTokensAreProposalsAtNoDraftCost) {
  Scene scene;
  const std::vector<std::int32_t> forced = {70, 71, 72};
  scene.draft({{0, 4, 2, 0, forced, nullptr}, {1, 14, 0, 0}});
  EXPECT_THAT(scene.round.proposals(0), ElementsAre(70, 71));
  EXPECT_THAT(scene.round.proposals(1), IsEmpty());
  EXPECT_EQ(scene.module.heads, 0);
}

TEST(DraftRound, RowsThatEndOtherwiseAreAborted) {
  Scene scene;
  NgramDrafter repeats({1, 4});
  repeats.append(std::vector<std::int32_t>{8, 8});
  scene.draft({{0, 4, 2, 0}, {1, 8, 2, 0, {}, &repeats}});
  scene.round.abort();
  EXPECT_FALSE(scene.group->in_round(0));
  EXPECT_EQ(scene.keys(0), (Floats{2, 3}));
  EXPECT_EQ(scene.keys(1), (Floats{12, 13}));
}

TEST(DraftRound, ARowWhoseDraftFailsGoesOnWithItsPendingTokenAlone) {
  Scene scene;
  scene.module.faulty_output = 1004;  // the logits of row 0
  EXPECT_THAT(scene.draft({{0, 4, 2, 0}, {1, 14, 2, 0}}), ElementsAre(RowResult::failed, RowResult::done));
  EXPECT_THAT(scene.round.proposals(0), IsEmpty());
  float first[] = {40}, second[] = {80, 90};
  const DraftRound::Verdict verdicts[] = {{0, 0, {first, 1, 1, 1}}, {1, 1, {second, 2, 1, 1}}};
  RowResult results[2];
  scene.round.prepare_commit(scene.step(), verdicts, results).commit();
  EXPECT_EQ(scene.keys(0), (Floats{2, 3, 4}));
  EXPECT_EQ(scene.hidden(0), 40);
  EXPECT_EQ(scene.group->processed(1), 5);
}

TEST(DraftRound, APrefillThatFailsLeavesBothKindsOfRowsInTheRound) {
  Scene scene;
  NgramDrafter repeats({1, 4});
  repeats.append(std::vector<std::int32_t>{8, 8});
  scene.draft({{0, 4, 2, 0}, {1, 8, 2, 0, {}, &repeats}});
  float first[] = {40, 41, 42}, second[] = {80, 90, 60};
  const DraftRound::Verdict verdicts[] = {{0, 1, {first, 3, 1, 1}}, {1, 1, {second, 3, 1, 1}}};
  RowResult results[2];
  scene.module.before_pass = [] { throw InjectedFailure("the module"); };
  EXPECT_THROW(scene.round.prepare_commit(scene.step(), verdicts, results), InjectedFailure);
  EXPECT_TRUE(scene.group->in_round(0));
  EXPECT_EQ(scene.keys(1), (Floats{12, 13}));
  scene.module.before_pass = nullptr;
  scene.round.prepare_commit(scene.step(), verdicts, results).commit();
  EXPECT_EQ(scene.group->processed(0), 5);
  EXPECT_EQ(scene.group->processed(1), 5);
}

TEST(DraftRound, AModelWithoutAHeadDraftsFromItsText) {
  DraftRound round(nullptr);
  NgramDrafter repeats({1, 4});
  repeats.append(std::vector<std::int32_t>{8, 9, 8});
  const std::unique_ptr<Device> device = make_cpu_device(1);
  Arena arena(64);
  const Step step{*device, arena};
  RowResult results[2];
  const DraftRound::Ask asks[] = {{0, 8, 2, 0, {}, &repeats}, {1, 5, 2, 0}};
  round.draft(step, asks, nullptr, results);
  EXPECT_THAT(round.proposals(0), ElementsAre(9, 8));
  EXPECT_THAT(round.proposals(1), IsEmpty());
  float context[] = {1, 2};
  const DraftRound::Verdict verdicts[] = {{0, 1, {context, 2, 1, 1}}, {1, 0, {context, 1, 1, 1}}};
  round.prepare_commit(step, verdicts, results).commit();
  round.abort();
}

}  // namespace
}  // namespace outrider
