// The worked traces of runtime.md section 4, and what the text around them promises of single operations.
#include <gmock/gmock.h>

#include <numeric>

#include "speculate/scripted_draft.h"

namespace outrider {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

using Floats = std::vector<float>;

constexpr std::int32_t kFirst = 500, kSecond = 600;  // proposals of rows 0 and 1: kFirst + place, kSecond + place

ScriptedPort numbered_port(std::int64_t first_t) {
  return port_that_proposes([=](const DraftPick& pick, float) {
    return (pick.row == 0 ? kFirst : kSecond) + static_cast<std::int32_t>(pick.t - first_t);
  });
}

// The two rows of trace 1 after their first chunk.
struct TraceOne : DraftScene {
  explicit TraceOne(Refresh refresh) : DraftScene(refresh) {
    append_cold(2);
    prefill_tens({{1, 2, 3}, {11, 12, 13}});
  }
};

TEST(MtpTrace, OneAPrefillOfColdRowsAndTheBridgeAfterIt) {
  TraceOne scene(Refresh::as_drafted);
  EXPECT_EQ(scene.keys(0), (Floats{2, 3}));
  EXPECT_EQ(scene.keys(1), (Floats{12, 13}));
  EXPECT_EQ(scene.values(0), (Floats{10, 20}));
  EXPECT_EQ(scene.values(1), (Floats{110, 120}));
  EXPECT_EQ(scene.hidden(0), 30);
  EXPECT_EQ(scene.hidden(1), 130);
  EXPECT_EQ(scene.module.appends, 1);
  scene.prefill_tens({{4}, {14}});
  EXPECT_EQ(scene.keys(0), (Floats{2, 3, 4}));
  EXPECT_EQ(scene.values(0), (Floats{10, 20, 30}));
  EXPECT_EQ(scene.hidden(0), 40);
  EXPECT_EQ(scene.module.appends, 2);
  EXPECT_EQ(scene.module.forwards + scene.module.heads, 0);
}

TEST(MtpTrace, TwoAColdRowAndADonorJoinARestoredOne) {
  DraftScene scene(Refresh::as_drafted);
  scene.append_cold(1);
  scene.prefill_tens({{1, 2, 3}});
  const std::optional<MtpState> donor = scene.group->extract_row(scene.step(), 0);
  ASSERT_TRUE(donor);
  scene.group->append(std::vector<MtpJoin>{{nullptr}, {&*donor}});
  scene.prefill_tens({{4, 5}, {11, 12}, {4, 5}});
  for (const std::int64_t r : {0, 2}) {
    EXPECT_EQ(scene.keys(r), (Floats{2, 3, 4, 5}));
    EXPECT_EQ(scene.values(r), (Floats{10, 20, 30, 40}));
    EXPECT_EQ(scene.hidden(r), 50);
  }
  EXPECT_EQ(scene.keys(1), Floats{12});
  EXPECT_EQ(scene.values(1), Floats{110});
  EXPECT_EQ(scene.hidden(1), 120);
  EXPECT_EQ(DraftScene::plane(donor->kv, 0), (Floats{2, 3}));
  EXPECT_EQ(*donor->hidden.as<float>().data(), 30);
}

TEST(MtpTrace, ThreeRowsAreReordered) {
  DraftScene scene(Refresh::as_drafted);
  scene.append_cold(2);
  scene.prefill_tens({{1, 2, 3, 4, 5}, {11, 12}});
  scene.group->filter_rows(std::vector<std::int64_t>{1, 0});
  scene.prefill_tens({{13}, {6}});
  EXPECT_EQ(scene.keys(0), (Floats{12, 13}));
  EXPECT_EQ(scene.values(0), (Floats{110, 120}));
  EXPECT_EQ(scene.hidden(0), 130);
  EXPECT_EQ(scene.keys(1), (Floats{2, 3, 4, 5, 6}));
  EXPECT_EQ(scene.hidden(1), 60);
}

TEST(MtpTrace, FourAPrefixOfOneTokenNeedsNoPass) {
  DraftScene scene(Refresh::as_drafted);
  scene.append_cold(1);
  scene.prefill_tens({{7}});
  EXPECT_EQ(scene.module.appends, 0);
  EXPECT_EQ(scene.group->draft_length(0), 0);
  EXPECT_EQ(scene.group->processed(0), 1);
  EXPECT_EQ(scene.hidden(0), 70);
  scene.append_cold(1);
  scene.prefill_tens({{8}, {9}});
  EXPECT_EQ(scene.keys(0), Floats{8});
  EXPECT_EQ(scene.values(0), Floats{70});
  EXPECT_THAT(scene.keys(1), IsEmpty());
  EXPECT_EQ(scene.hidden(1), 90);
}

TEST(MtpTrace, FiveRoundsKeepWhatWasAccepted) {
  TraceOne scene(Refresh::as_drafted);
  ScriptedPort port = numbered_port(0);
  scene.draft({{0, 4, 2, 0}, {1, 14, 2, 0}}, &port);
  EXPECT_THAT(scene.group->proposals(0), ElementsAre(kFirst, kFirst + 1));
  EXPECT_THAT(scene.group->proposals(1), ElementsAre(kSecond, kSecond + 1));
  scene.commit({{0, 1, {1, 2, 3}}, {1, 0, {4, 5, 6}}});
  EXPECT_EQ(scene.keys(0), (Floats{2, 3, 4, kFirst}));
  EXPECT_EQ(scene.values(0), (Floats{10, 20, 30, 1004}));
  EXPECT_EQ(scene.keys(1), (Floats{12, 13, 14}));
  EXPECT_EQ(scene.hidden(0), 2);
  EXPECT_EQ(scene.hidden(1), 4);
  EXPECT_EQ(scene.group->processed(0), 5);
  EXPECT_EQ(scene.group->exact_length(0), 3);
  EXPECT_EQ(scene.group->exact_length(1), 3);
}

TEST(MtpTrace, FiveAFullAcceptanceAddsTheLastProposal) {
  TraceOne scene(Refresh::as_drafted);
  ScriptedPort port = numbered_port(0);
  scene.draft({{0, 4, 2, 0}, {1, 14, 2, 0}}, &port);
  scene.commit({{0, 2, {1, 2, 3}}, {1, 2, {4, 5, 6}}});
  EXPECT_EQ(scene.keys(0), (Floats{2, 3, 4, kFirst, kFirst + 1}));
  EXPECT_EQ(scene.values(0), (Floats{10, 20, 30, 1004, 2}));
  EXPECT_EQ(scene.keys(1), (Floats{12, 13, 14, kSecond, kSecond + 1}));
  EXPECT_EQ(scene.values(1).back(), 5);
  EXPECT_EQ(scene.hidden(0), 3);
  EXPECT_EQ(scene.hidden(1), 6);
}

TEST(MtpTrace, FiveFromTargetRewritesWithTrueHiddens) {
  TraceOne scene(Refresh::from_target);
  ScriptedPort port = numbered_port(0);
  scene.draft({{0, 4, 2, 0}, {1, 14, 2, 0}}, &port);
  scene.commit({{0, 1, {40, 2, 3}}, {1, 0, {4, 5, 6}}});
  EXPECT_EQ(scene.keys(0), (Floats{2, 3, 4}));  // the chained row is dropped, its pair carried
  EXPECT_EQ(scene.group->carried(0), 1);
  EXPECT_EQ(scene.group->carried(1), 0);
  EXPECT_EQ(scene.group->processed(0), 5);
  EXPECT_EQ(scene.hidden(0), 2);
  const std::optional<MtpState> flushed = scene.group->extract_row(scene.step(), 0);
  EXPECT_EQ(DraftScene::plane(flushed->kv, 0), (Floats{2, 3, 4, kFirst}));
  EXPECT_EQ(DraftScene::plane(flushed->kv, 1), (Floats{10, 20, 30, 40}));
  EXPECT_EQ(flushed->exact, 4);
}

TEST(MtpTrace, SixDepthZeroIsARoundFullyRejected) {
  for (const Refresh refresh : {Refresh::from_target, Refresh::as_drafted}) {
    TraceOne zero(refresh), one(refresh);
    ScriptedPort port = numbered_port(0);
    zero.draft({{0, 4, 0, 0}, {1, 14, 0, 0}}, nullptr);
    one.draft({{0, 4, 1, 0}, {1, 14, 1, 0}}, &port);
    EXPECT_EQ(zero.module.heads, 0);
    EXPECT_EQ(zero.module.forwards, 0);
    zero.commit({{0, 0, {77}}, {1, 0, {78}}});
    one.commit({{0, 0, {77, 1}}, {1, 0, {78, 1}}});
    for (const std::int64_t r : {0, 1}) {
      EXPECT_EQ(zero.keys(r), one.keys(r));
      EXPECT_EQ(zero.values(r), one.values(r));
      EXPECT_EQ(zero.hidden(r), one.hidden(r));
      EXPECT_EQ(zero.group->carried(r), 0);
    }
  }
}

TEST(MtpTrace, SevenADisposedAppendChangesNothing) {
  TraceOne scene(Refresh::from_target);
  scene.group->prepare_append(std::vector<MtpJoin>(2)).dispose();
  EXPECT_EQ(scene.group->row_count(), 2);
  EXPECT_EQ(scene.keys(0), (Floats{2, 3}));
  scene.group->append({});
  EXPECT_EQ(scene.group->row_count(), 2);
}

TEST(MtpTrace, EightAnAbortLeavesTheRowAndANeighboursCommitStands) {
  for (const Refresh refresh : {Refresh::from_target, Refresh::as_drafted}) {
    TraceOne scene(refresh);
    ScriptedPort port = numbered_port(0);
    const std::int64_t blocks = scene.pool.used_blocks();
    scene.draft({{0, 4, 2, 0}, {1, 14, 2, 0}}, &port);
    const std::int64_t gone[] = {0};
    scene.group->abort(gone);
    scene.group->abort(gone);  // nothing left to do
    scene.commit({{1, 0, {9, 9}}});
    EXPECT_EQ(scene.keys(0), (Floats{2, 3}));
    EXPECT_EQ(scene.values(0), (Floats{10, 20}));
    EXPECT_EQ(scene.hidden(0), 30);
    EXPECT_FALSE(scene.group->in_round(0));
    EXPECT_EQ(scene.keys(1), (Floats{12, 13, 14}));
    EXPECT_EQ(scene.pool.used_blocks(), blocks);
    scene.draft({{0, 4, 1, 0}}, &port);  // and a new round begins as the first did
    EXPECT_THAT(scene.group->proposals(0), ElementsAre(kFirst));
  }
}

TEST(MtpRows, StepsOfTheNoiseAreThoseOfTheProposals) {
  TraceOne scene(Refresh::from_target);
  ScriptedPort port = numbered_port(7);
  scene.draft({{0, 4, 3, 7}, {1, 14, 1, 21}}, &port);
  std::vector<std::int64_t> first, second;
  for (const DraftPick& pick : port.picks) (pick.row == 0 ? first : second).push_back(pick.t);
  EXPECT_THAT(first, ElementsAre(7, 8, 9));
  EXPECT_THAT(second, ElementsAre(21));
  EXPECT_EQ(scene.group->proposals(1).size(), 1u);
}

TEST(MtpRows, AChainIsFedTheProposalAndTheModulesOwnOutput) {
  TraceOne scene(Refresh::as_drafted);
  ScriptedPort port = numbered_port(0);
  scene.draft({{0, 4, 3, 0}}, &port);
  scene.commit({{0, 2, {1, 2, 3}}});  // the window was cut to two proposals
  EXPECT_EQ(scene.keys(0), (Floats{2, 3, 4, kFirst, kFirst + 1}));
  EXPECT_EQ(scene.values(0), (Floats{10, 20, 30, 1004, 1000 + kFirst}));
}

TEST(MtpRows, APortMayEndADraftEarly) {
  for (const Refresh refresh : {Refresh::from_target, Refresh::as_drafted}) {
    TraceOne scene(refresh);
    ScriptedPort port([](const DraftPick& pick, float) {
      const bool over = pick.row == 0 ? pick.t == 1 : true;
      return over ? DraftChoice{} : DraftChoice{Picked::proposal, kFirst};
    });
    EXPECT_THAT(scene.draft({{0, 4, 3, 0}, {1, 14, 3, 0}}, &port), Each(RowResult::done));
    EXPECT_THAT(scene.group->proposals(0), ElementsAre(kFirst));
    EXPECT_THAT(scene.group->proposals(1), IsEmpty());
    scene.commit({{0, 1, {40, 2}}, {1, 0, {5}}});
    EXPECT_EQ(scene.group->processed(0), 5);
    EXPECT_EQ(scene.group->processed(1), 4);
    EXPECT_EQ(scene.keys(1), (Floats{12, 13, 14}));
  }
}

TEST(MtpRows, LongPromptsGoInBoundedPassesWithTheSameRows) {
  DraftScene scene;  // passes of 64 tokens
  scene.append_cold(2);
  std::vector<std::int32_t> a(150), b(77);
  std::iota(a.begin(), a.end(), 1);
  std::iota(b.begin(), b.end(), 1001);
  scene.prefill_tens({a, b});
  EXPECT_EQ(scene.module.appends, 4);  // 149 + 76 pairs
  EXPECT_LE(scene.module.longest_pass, 64);
  for (std::size_t i = 1; i < 150; ++i) EXPECT_EQ(scene.keys(0)[i - 1], a[i]);
  for (std::size_t i = 1; i < 77; ++i) EXPECT_EQ(scene.values(1)[i - 1], 10.0F * static_cast<float>(b[i - 1]));
}

TEST(MtpRows, TwoPromptsThatAgreeUpToABlockShareItAndDifferBehind) {
  DraftScene scene;
  scene.append_cold(1);
  std::vector<std::int32_t> prompt(128);
  std::iota(prompt.begin(), prompt.end(), 1);
  scene.prefill_tens({prompt});
  MtpState stored{scene.group->share_prefix(scene.step(), 0, 128), AlignedBuffer(4, MemoryPart::kv), 127};
  stored.hidden.as<float>()[0] = scene.hidden(0);
  EXPECT_EQ(scene.pool.used_blocks(), 2);
  scene.group->append(std::vector<MtpJoin>{{&stored}, {&stored}});
  scene.prefill_tens({{129}, {700, 701}, {800}});
  EXPECT_EQ(scene.pool.used_blocks(), 5);  // the two shared ones and one of each row
  for (const std::int64_t r : {1, 2})
    for (const std::size_t b : {0u, 1u}) EXPECT_EQ(scene.group->kv(r).blocks()[b], scene.group->kv(0).blocks()[b]);
  EXPECT_EQ(scene.keys(1)[127], 700);
  EXPECT_EQ(scene.values(1)[127], 1280);  // the bridge: the stored hidden of token 128
  EXPECT_EQ(scene.keys(2)[127], 800);
  EXPECT_EQ(scene.keys(0)[127], 129);
}

TEST(MtpRows, APublishedPrefixIsThePartAPrefillWouldGive) {
  TraceOne scene(Refresh::from_target);
  ScriptedPort port = numbered_port(0);
  scene.draft({{0, 4, 2, 0}}, &port);
  scene.commit({{0, 2, {40, 50, 60}}});
  EXPECT_EQ(scene.group->carried(0), 2);
  const KvRow all = scene.group->share_prefix(scene.step(), 0, 6);  // carried pairs are written first
  EXPECT_EQ(DraftScene::plane(all, 0), (Floats{2, 3, 4, kFirst, kFirst + 1}));
  EXPECT_EQ(DraftScene::plane(all, 1), (Floats{10, 20, 30, 40, 50}));
  EXPECT_EQ(scene.group->share_prefix(scene.step(), 0, 1).length(), 0);
}

TEST(MtpRows, CheckpointsRestoreTheRowAndRefuseAnyOther) {
  TraceOne scene(Refresh::from_target);
  const MtpCheckpoint stored = scene.group->checkpoint(scene.step(), 0);
  EXPECT_EQ(stored.draft_offset, 2);
  EXPECT_EQ(stored.hidden, Floats{30});
  const MtpState state = scene.group->restore(stored, 3);
  scene.group->append(std::vector<MtpJoin>{{&state}});
  scene.prefill_tens({{4}, {14}, {4}});
  EXPECT_EQ(scene.keys(2), scene.keys(0));
  EXPECT_EQ(scene.values(2), scene.values(0));
  EXPECT_EQ(scene.hidden(2), scene.hidden(0));

  const auto refused = [&](const std::function<void(MtpCheckpoint&)>& spoil, std::int64_t tokens = 3) {
    MtpCheckpoint bad = stored;
    spoil(bad);
    try {
      scene.group->restore(bad, tokens);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::data &&
             std::string(error.what()).starts_with("invalid paired MTP checkpoint alignment");
    }
    return false;
  };
  EXPECT_TRUE(refused([](MtpCheckpoint&) {}, 4));
  EXPECT_TRUE(refused([](MtpCheckpoint&) {}, 0));
  EXPECT_TRUE(refused([](MtpCheckpoint& c) { c.draft_offset = 1; }));
  EXPECT_TRUE(refused([](MtpCheckpoint& c) { c.draft_offset = -1; }));
  EXPECT_TRUE(refused([](MtpCheckpoint& c) { c.identity = "another"; }));
  EXPECT_TRUE(refused([](MtpCheckpoint& c) { c.k.pop_back(); }));
  EXPECT_TRUE(refused([](MtpCheckpoint& c) { c.v.clear(); }));
  EXPECT_TRUE(refused([](MtpCheckpoint& c) { c.hidden.push_back(0); }));
  EXPECT_TRUE(refused([](MtpCheckpoint& c) { c.exact = 3; }));
  EXPECT_FALSE(refused([](MtpCheckpoint&) {}));

  scene.append_cold(1);
  scene.prefill_tens({{9}}, 3);
  const MtpCheckpoint first = scene.group->checkpoint(scene.step(), 3);
  EXPECT_TRUE(first.k.empty() && first.v.empty());
  EXPECT_EQ(scene.group->restore(first, 1).kv.length(), 0);
}

TEST(MtpRows, AColdRowGivesColdAndKeepsAHiddenOfZero) {
  DraftScene scene;
  scene.append_cold(1);
  EXPECT_EQ(scene.group->processed(0), 0);
  EXPECT_EQ(scene.hidden(0), 0);
  EXPECT_FALSE(scene.group->extract_row(scene.step(), 0));
}

TEST(MtpRows, AFaultyRowIsGivenUpAloneAndAfterThreeTimesItsHead) {
  for (const Refresh refresh : {Refresh::from_target, Refresh::as_drafted}) {
    TraceOne scene(refresh);
    scene.module.faulty_token = 99;
    ScriptedPort port = numbered_port(0);
    EXPECT_THAT(scene.draft({{0, 99, 2, 0}, {1, 14, 2, 0}}, &port), ElementsAre(RowResult::failed, RowResult::done));
    EXPECT_FALSE(scene.group->in_round(0));
    EXPECT_EQ(scene.keys(0), (Floats{2, 3}));
    scene.commit({{1, 1, {1, 2}}});
    EXPECT_EQ(scene.group->processed(1), 5);

    scene.module.faulty_output = 1004;  // its logits
    EXPECT_THAT(scene.draft({{0, 4, 2, 0}}, &port), ElementsAre(RowResult::failed));
    EXPECT_FALSE(scene.group->without_head(0));
    EXPECT_THAT(scene.prefill_tens({{4, 99}}), ElementsAre(RowResult::failed));
    EXPECT_TRUE(scene.group->without_head(0));
    EXPECT_EQ(scene.group->rows_without_head(), 1);
    EXPECT_EQ(scene.group->kv(0).length(), 0);

    // It goes on without: nothing is done for it, nothing fails.
    EXPECT_THAT(scene.prefill_tens({{5}}), ElementsAre(RowResult::without_head));
    EXPECT_THAT(scene.draft({{0, 4, 2, 0}, {1, 15, 1, 0}}, &port),
                ElementsAre(RowResult::without_head, RowResult::done));
    EXPECT_THAT(scene.commit({{0, 0, {1}}, {1, 0, {1}}}), ElementsAre(RowResult::without_head, RowResult::done));
    EXPECT_FALSE(scene.group->extract_row(scene.step(), 0));
  }
}

TEST(MtpRows, ARowThatJoinsWithoutAHeadHasItsPlaceAndNothingElse) {
  DraftScene scene;
  scene.group->append(std::vector<MtpJoin>{{nullptr, 100, MtpJoin::Head::without}, {nullptr, 100}});
  EXPECT_TRUE(scene.group->without_head(0));
  EXPECT_FALSE(scene.group->without_head(1));
  EXPECT_EQ(scene.group->rows_without_head(), 0) << "it has lost nothing";
  EXPECT_THAT(scene.prefill_tens({{1, 2, 3}, {11, 12, 13}}), ElementsAre(RowResult::without_head, RowResult::done));
  ScriptedPort port = numbered_port(0);
  EXPECT_THAT(scene.draft({{0, 4, 2, 0}, {1, 14, 2, 0}}, &port), ElementsAre(RowResult::without_head, RowResult::done));
  EXPECT_TRUE(scene.group->proposals(0).empty());
  // A round of others may end without it.
  EXPECT_THAT(scene.commit({{1, 1, {1, 2}}}), ElementsAre(RowResult::done));
  EXPECT_EQ(scene.group->processed(0), 0);
  EXPECT_EQ(scene.group->kv(0).length(), 0);
  EXPECT_EQ(scene.group->processed(1), 5);
  scene.group->filter_rows(std::vector<std::int64_t>{1});
  EXPECT_FALSE(scene.group->without_head(0));
}

TEST(MtpRows, APortThatFailsForOneRowGivesUpThatRow) {
  TraceOne scene(Refresh::from_target);
  ScriptedPort port([](const DraftPick& pick, float) {
    return pick.row == 1 && pick.t == 1 ? DraftChoice{Picked::failed, -1} : DraftChoice{Picked::proposal, kFirst};
  });
  EXPECT_THAT(scene.draft({{0, 4, 3, 0}, {1, 14, 3, 0}}, &port), ElementsAre(RowResult::done, RowResult::failed));
  EXPECT_EQ(scene.group->proposals(0).size(), 3u);
  EXPECT_EQ(scene.keys(1), (Floats{12, 13}));
}

TEST(MtpRows, AFullPoolFailsTheCallAndBlamesOnlyTheRowThatAsked) {
  DraftScene scene;
  scene.append_cold(2);
  std::vector<std::int32_t> short_prompt(40), longer(64 * 255);
  scene.prefill_tens({short_prompt, longer});
  EXPECT_EQ(scene.pool.used_blocks(), 256);
  ScriptedPort port = numbered_port(0);
  for (int attempt = 0; attempt < 3; ++attempt)
    EXPECT_THROW(scene.draft({{0, 4, 2, 0}, {1, 14, 2, 0}}, &port), Error);  // row 1 needs one more block
  EXPECT_FALSE(scene.group->without_head(0));
  EXPECT_TRUE(scene.group->without_head(1));
  EXPECT_THAT(scene.draft({{0, 4, 2, 0}, {1, 14, 2, 0}}, &port), ElementsAre(RowResult::done, RowResult::without_head));
}

TEST(MtpRowsDeathTest, ChecksTheOrderOfARound) {
  GTEST_FLAG_SET(death_test_style, "fast");
  TraceOne scene(Refresh::from_target);
  ScriptedPort port = numbered_port(0);
  EXPECT_DEATH(scene.commit({{0, 0, {1}}}), "commit without draft");
  EXPECT_DEATH(scene.draft({{0, 4, 5, 0}}, &port), "depth 5 of at most 4");
  EXPECT_DEATH(scene.draft({{0, 4, 1, 0}, {0, 4, 1, 0}}, &port), "named twice");
  EXPECT_DEATH(scene.draft({{2, 4, 1, 0}}, &port), "draft row 2 of 2");
  EXPECT_DEATH(scene.prefill({{0, {}, {}}}), "no tokens");
  EXPECT_DEATH(scene.group->filter_rows(std::vector<std::int64_t>{0, 0}), "twice");
  scene.draft({{0, 4, 2, 0}}, &port);
  EXPECT_DEATH(scene.draft({{0, 4, 2, 0}}, &port), "already inside a round");
  EXPECT_DEATH(scene.commit({{0, 2, {1, 2}}}), "2 accepted");
  EXPECT_DEATH(scene.commit({{0, 0, {1, 2, 3, 4}}}), "4 rows, 2 proposals");
  EXPECT_DEATH(scene.group->extract_row(scene.step(), 0), "inside a round");
  EXPECT_DEATH(scene.prefill_tens({{4}}), "already inside a round");
  EXPECT_DEATH(scene.group->filter_rows(std::vector<std::int64_t>{1}), "retires inside a round");
  scene.commit({{0, 0, {1}}});
  EXPECT_DEATH(scene.commit({{0, 0, {1}}}), "commit without draft");
  scene.append_cold(1);
  EXPECT_DEATH(scene.draft({{2, 4, 0, 0}}, nullptr), "draft of cold row 2");
}

}  // namespace
}  // namespace outrider
