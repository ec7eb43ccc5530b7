#include "state/row_group.h"

#include <gtest/gtest.h>

#include <array>

#include "state/test_rows.h"

namespace outrider {
namespace {

using Group = RowGroup<KvRow>;

class RowGroupTest : public testing::Test {
 protected:
  KvRow row_of(const RowModel& ids) {
    KvRow row(pool_);
    append_ids(row, layout_, ids);
    return row;
  }
  void expect_rows(const Group& group, const std::vector<RowModel>& models) {
    ASSERT_EQ(group.row_count(), std::ssize(models));
    for (std::int64_t r = 0; r < group.row_count(); ++r)
      EXPECT_TRUE(holds(group.row(r), layout_, models[static_cast<std::size_t>(r)])) << "row " << r;
  }

  KvLayout layout_ = test_layout();
  KvPool pool_{layout_, 64};
};

TEST_F(RowGroupTest, MergesGroupsSingleRowsAndEmptyOnesInOrder) {
  const KvRow a = row_of(ids_from(1, 70));
  const KvRow empty(pool_);
  const KvRow b = row_of(ids_from(300, 5));
  Group pair;
  pair.merge_rows({a, empty});
  const Group nobody;
  Group all;
  all.merge_rows({b, pair, nobody, a});
  expect_rows(all, {ids_from(300, 5), ids_from(1, 70), {}, ids_from(1, 70)});
}

TEST_F(RowGroupTest, LeavesTheSourcesOfAMergeUsableAndUnchanged) {
  KvRow a = row_of(ids_from(1, 70));
  Group group;
  group.merge_rows({a});
  append_ids(group.row(0), layout_, ids_from(500, 3));
  EXPECT_TRUE(holds(a, layout_, ids_from(1, 70)));
  append_ids(a, layout_, ids_from(600, 1));
  expect_rows(group, {joined(ids_from(1, 70), ids_from(500, 3))});
  EXPECT_TRUE(holds(a, layout_, joined(ids_from(1, 70), {600})));
}

TEST_F(RowGroupTest, JoinsALateRowByMergingWithItself) {
  Group group;
  group.merge_rows({row_of(ids_from(1, 66)), row_of(ids_from(200, 4))});
  const std::byte* block = group.row(0).blocks()[0];
  const std::int64_t used = pool_.used_blocks();
  group.merge_rows({group, row_of(ids_from(400, 2))});
  expect_rows(group, {ids_from(1, 66), ids_from(200, 4), ids_from(400, 2)});
  EXPECT_EQ(group.row(0).blocks()[0], block);  // handles move, not bytes
  EXPECT_EQ(pool_.used_blocks(), used + 1);
}

TEST_F(RowGroupTest, FiltersRetireAndReorder) {
  Group group;
  group.merge_rows({row_of(ids_from(1, 70)), row_of(ids_from(200, 4)), row_of(ids_from(300, 64))});
  const std::byte* block = group.row(2).blocks()[0];
  group.filter_rows(std::array<std::int64_t, 2>{2, 0});
  expect_rows(group, {ids_from(300, 64), ids_from(1, 70)});
  EXPECT_EQ(group.row(0).blocks()[0], block);
  EXPECT_EQ(pool_.used_blocks(), 3);  // the retired row's block went back
}

TEST_F(RowGroupTest, StaysUsableAfterAnEmptyKeep) {
  Group group;
  group.merge_rows({row_of(ids_from(1, 70))});
  group.filter_rows({});
  EXPECT_EQ(group.row_count(), 0);
  EXPECT_EQ(pool_.used_blocks(), 0);
  group.round_begin();
  group.round_rollback({});
  group.merge_rows({row_of(ids_from(5, 3))});
  expect_rows(group, {ids_from(5, 3)});
}

TEST_F(RowGroupTest, ExtractsAnIndependentRow) {
  Group group;
  group.merge_rows({row_of(ids_from(1, 70)), KvRow(pool_)});
  KvRow copy = group.extract_row(0);
  EXPECT_NE(copy.blocks()[0], group.row(0).blocks()[0]);
  group.filter_rows({});
  EXPECT_TRUE(holds(copy, layout_, ids_from(1, 70)));
  Group empties;
  empties.merge_rows({KvRow(pool_)});
  EXPECT_EQ(empties.extract_row(0).length(), 0);
}

TEST_F(RowGroupTest, RollsBackAsInTheWorkedExample) {
  // runtime.md 2.2: lengths 2 and 4; begin; append 3; rollback {0, 2} gives 2 and 6; the next append overwrites.
  Group group;
  group.merge_rows({row_of(ids_from(10, 2)), row_of(ids_from(20, 4))});
  const std::byte* blocks[] = {group.row(0).blocks()[0], group.row(1).blocks()[0]};
  group.round_begin();
  // After the merge nobody else holds these rows, so even the appends keep the blocks in place.
  append_ids(group.row(0), layout_, ids_from(110, 3));
  append_ids(group.row(1), layout_, ids_from(120, 3));
  EXPECT_TRUE(group.in_round());
  group.round_rollback(std::array<std::int64_t, 2>{0, 2});
  EXPECT_FALSE(group.in_round());
  EXPECT_EQ(group.row(0).length(), 2);
  EXPECT_EQ(group.row(1).length(), 6);
  EXPECT_EQ(group.row(0).blocks()[0], blocks[0]);
  EXPECT_EQ(group.row(1).blocks()[0], blocks[1]);
  expect_rows(group, {ids_from(10, 2), joined(ids_from(20, 4), ids_from(120, 2))});
  append_ids(group.row(0), layout_, ids_from(210, 1));
  append_ids(group.row(1), layout_, ids_from(220, 1));
  expect_rows(group, {joined(ids_from(10, 2), {210}), joined(joined(ids_from(20, 4), ids_from(120, 2)), {220})});
}

TEST_F(RowGroupTest, CommitKeepsAllOfARound) {
  Group group;
  group.merge_rows({row_of(ids_from(10, 2)), row_of(ids_from(20, 4))});
  group.round_begin();
  append_ids(group.row(1), layout_, ids_from(120, 3));
  group.round_commit();
  expect_rows(group, {ids_from(10, 2), joined(ids_from(20, 4), ids_from(120, 3))});
}

TEST_F(RowGroupTest, AGroupOfOneIsTheRowItself) {
  KvRow single = row_of(ids_from(1, 60));
  Group group;
  group.merge_rows({single.extract()});
  for (KvRow* row : {&single, &group.row(0)}) append_ids(*row, layout_, ids_from(61, 5));
  single.round_begin();
  group.round_begin();
  for (KvRow* row : {&single, &group.row(0)}) append_ids(*row, layout_, ids_from(90, 5));
  single.round_rollback(2);
  group.round_rollback(std::array<std::int64_t, 1>{2});
  const RowModel model = joined(ids_from(1, 65), ids_from(90, 2));
  EXPECT_TRUE(holds(single, layout_, model));
  EXPECT_TRUE(holds(group.row(0), layout_, model));
}

TEST_F(RowGroupTest, RefusesToJoinUnlikeKindsNamingBothAndStaysAsItWas) {
  KvPool wide(test_layout(FloatType::f32), 4);
  const KvRow other(wide);
  Group group;
  group.merge_rows({row_of(ids_from(1, 3))});
  try {
    group.merge_rows({group, other});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rows of unlike kinds cannot join: kv:plain and kv:plain:f32");
  }
  expect_rows(group, {ids_from(1, 3)});
}

TEST_F(RowGroupTest, APreparedChangeShowsOnlyAtCommit) {
  Group group;
  group.merge_rows({row_of(ids_from(1, 3)), row_of(ids_from(5, 3))});
  const KvRow late = row_of(ids_from(9, 1));
  const RowSource<KvRow> sources[] = {group, late};
  PreparedStateChange merge = group.prepare_merge(sources);
  expect_rows(group, {ids_from(1, 3), ids_from(5, 3)});
  merge.dispose();
  merge.dispose();
  expect_rows(group, {ids_from(1, 3), ids_from(5, 3)});
  PreparedStateChange filter = group.prepare_filter(std::array<std::int64_t, 1>{1});
  filter.commit();
  expect_rows(group, {ids_from(5, 3)});
  EXPECT_EQ(pool_.used_blocks(), 3);  // the retired row lives until dispose
  filter.dispose();
  EXPECT_EQ(pool_.used_blocks(), 2);
  expect_rows(group, {ids_from(5, 3)});
}

TEST_F(RowGroupTest, AppliesChangesOfTwoGroupsTogetherOrNotAtAll) {
  KvPool wide(test_layout(FloatType::f32), 4);
  const KvRow other(wide);
  Group target;
  Group draft;
  target.merge_rows({row_of(ids_from(1, 3)), row_of(ids_from(5, 3))});
  draft.merge_rows({row_of(ids_from(7, 2))});
  const std::int64_t keep[] = {1};
  const RowSource<KvRow> bad[] = {draft, other};
  const StatePreparer failing[] = {[&] { return target.prepare_filter(keep); },
                                   [&] { return draft.prepare_merge(bad); }};
  EXPECT_THROW(apply_state_changes(failing), Error);
  expect_rows(target, {ids_from(1, 3), ids_from(5, 3)});
  expect_rows(draft, {ids_from(7, 2)});
  const RowSource<KvRow> good[] = {draft, draft};
  const StatePreparer working[] = {[&] { return target.prepare_filter(keep); },
                                   [&] { return draft.prepare_merge(good); }};
  apply_state_changes(working);
  expect_rows(target, {ids_from(5, 3)});
  expect_rows(draft, {ids_from(7, 2), ids_from(7, 2)});
}

using RowGroupDeath = RowGroupTest;

TEST_F(RowGroupDeath, ProgrammingErrorsAreChecked) {
  Group group;
  group.merge_rows({row_of(ids_from(1, 3)), row_of(ids_from(5, 3))});
  using Keep = std::vector<std::int64_t>;
  EXPECT_DEATH(group.round_commit(), "without round_begin");
  EXPECT_DEATH(group.round_rollback(Keep{0, 0}), "without round_begin");
  EXPECT_DEATH(group.filter_rows(Keep{0, 0}), "names row 0 twice");
  EXPECT_DEATH(group.filter_rows(Keep{2}), "row 2 of 2");
  EXPECT_DEATH(group.filter_rows(Keep{-1}), "row -1 of 2");
  EXPECT_DEATH(group.extract_row(2), "row 2 of 2");
  KvPool twin(layout_, 2);
  const KvRow foreign(twin);
  EXPECT_DEATH(group.merge_rows({group, foreign}), "two pools");
  group.round_begin();
  append_ids(group.row(0), layout_, ids_from(7, 2));
  EXPECT_DEATH(group.round_begin(), "inside a round");
  EXPECT_DEATH(group.round_rollback(Keep{0}), "names 1 of 2 rows");
  EXPECT_DEATH(group.round_rollback(Keep{3, 0}), "keeps 3 of 2");
  EXPECT_DEATH(group.round_rollback(Keep{0, 1}), "keeps 1 of 0");
  EXPECT_DEATH(group.merge_rows({group}), "merge inside a round");
  EXPECT_DEATH(group.filter_rows(Keep{0}), "filter inside a round");
  EXPECT_DEATH(group.extract_row(0), "extract inside a round");
  Group joiner;
  EXPECT_DEATH(joiner.merge_rows({group}), "merge of a row inside a round");
}

TEST_F(RowGroupDeath, AStalePreparedChangeIsCaught) {
  Group group;
  group.merge_rows({row_of(ids_from(1, 3)), row_of(ids_from(5, 3))});
  const std::int64_t keep[] = {1, 0};
  PreparedStateChange stale = group.prepare_filter(keep);
  group.filter_rows(keep);
  EXPECT_DEATH(stale.commit(), "changed after prepare_filter");
}

}  // namespace
}  // namespace outrider
