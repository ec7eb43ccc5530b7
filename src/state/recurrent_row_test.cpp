#include "state/recurrent_row.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "state/row_group.h"
#include "state/test_recurrent.h"

namespace outrider {
namespace {

using Positions = std::vector<std::int64_t>;
constexpr StoreChoice kEvery = {StorePositions::every, {}};

class RecurrentRowTest : public testing::Test {
 protected:
  RecurrentRow row_of(const RowModel& ids) {
    RecurrentRow row(pool_);
    if (!ids.empty()) append_states(row, layout_, ids);
    return row;
  }
  RecurrentLayout layout_ = test_recurrent_layout();
  RecurrentPool pool_{layout_, {16, 16, 4}};
};

TEST_F(RecurrentRowTest, StartsAtTheStateOfZerosWithoutASlot) {
  const RecurrentRow row(pool_);
  EXPECT_EQ(row.length(), 0);
  EXPECT_TRUE(row.state().empty());
  EXPECT_EQ(row.access().read, nullptr);
  EXPECT_EQ(pool_.used_slots(), 0);
}

TEST_F(RecurrentRowTest, GoesOnFromTheStateItPublishedLast) {
  RecurrentRow row = row_of(ids_from(1, 5));
  append_states(row, layout_, ids_from(50, 1));
  append_states(row, layout_, ids_from(60, 3), kEvery);
  EXPECT_TRUE(holds(row, joined(joined(ids_from(1, 5), ids_from(50, 1)), ids_from(60, 3))));
  EXPECT_EQ(pool_.used_slots(), 1);
}

TEST_F(RecurrentRowTest, ReleasedReservationsLeaveTheState) {
  RecurrentRow row = row_of(ids_from(1, 5));
  row.reserve(3, kEvery);
  run_states(row.access(), layout_, ids_from(50, 3));
  EXPECT_EQ(pool_.used_slots(), 2);
  EXPECT_EQ(pool_.used_logs(), 1);
  row.release_reserved();
  EXPECT_TRUE(holds(row, ids_from(1, 5)));
  EXPECT_EQ(pool_.used_slots(), 1);
  EXPECT_EQ(pool_.used_logs(), 0);
}

TEST_F(RecurrentRowTest, AWindowMayPublishAnyOfItsPositions) {
  for (std::int64_t n = 0; n <= 3; ++n) {
    RecurrentRow row = row_of(ids_from(1, 5));
    row.reserve(3, kEvery);
    run_states(row.access(), layout_, ids_from(50, 3));
    row.advance(n);
    EXPECT_TRUE(holds(row, joined(ids_from(1, 5), ids_from(50, n)))) << n;
    EXPECT_EQ(pool_.used_slots(), 1);
    EXPECT_EQ(pool_.used_logs(), n > 1 ? 1 : 0);  // the state after the first token is a slot
    append_states(row, layout_, ids_from(70, 4), kEvery);
    append_states(row, layout_, ids_from(80, 1));
    EXPECT_TRUE(holds(row, joined(joined(joined(ids_from(1, 5), ids_from(50, n)), ids_from(70, 4)), {80}))) << n;
    EXPECT_EQ(pool_.used_logs(), 0);
  }
}

TEST_F(RecurrentRowTest, AStateWithALogIsSharedAndCopiedWithIt) {
  RecurrentRow row = row_of(ids_from(1, 5));
  append_states(row, layout_, ids_from(6, 4), kEvery);
  EXPECT_EQ(row.access().log.tokens, 3);
  RecurrentRow twin = row.clone(), apart = row.extract();
  EXPECT_EQ(pool_.used_slots(), 2);
  EXPECT_EQ(pool_.used_logs(), 2);
  EXPECT_TRUE(row.state_is_shared());
  EXPECT_FALSE(apart.state_is_shared());
  append_states(row, layout_, ids_from(20, 2), kEvery);
  for (RecurrentRow* other : {&twin, &apart}) {
    EXPECT_TRUE(holds(*other, ids_from(1, 9)));
    append_states(*other, layout_, ids_from(30, 1));
    EXPECT_TRUE(holds(*other, joined(ids_from(1, 9), {30})));
  }
  EXPECT_TRUE(holds(row, joined(ids_from(1, 9), ids_from(20, 2))));
}

// Behind a checkpoint within a window the log goes on from its slot; a copy takes only the part that counts.
TEST_F(RecurrentRowTest, TheLogBehindACheckpointCountsFromThere) {
  const Positions checkpoints = {7};
  RecurrentRow row = row_of(ids_from(1, 4));
  append_states(row, layout_, ids_from(5, 5), {StorePositions::every, checkpoints});
  EXPECT_EQ(row.access().log.first, 2);
  EXPECT_EQ(row.access().log.tokens, 2);
  EXPECT_EQ(row.access().read, row.prefix(7).state().data());
  const RecurrentRow apart = row.extract();
  EXPECT_EQ(apart.access().log.first, 0);
  EXPECT_TRUE(holds(apart, ids_from(1, 9)));
  EXPECT_TRUE(holds(row, ids_from(1, 9)));
}

TEST_F(RecurrentRowTest, RollbackSelectsTheStateAfterTheKeptPositions) {
  for (std::int64_t keep = 0; keep <= 5; ++keep) {
    RecurrentRow row = row_of(ids_from(1, 4));
    row.round_begin();
    append_states(row, layout_, ids_from(50, 3), kEvery);
    append_states(row, layout_, ids_from(53, 2), kEvery);
    EXPECT_EQ(row.round_appended(), 5);
    EXPECT_EQ(pool_.used_slots(), 3);
    EXPECT_EQ(pool_.used_logs(), 2);
    row.round_rollback(keep);
    EXPECT_TRUE(holds(row, joined(ids_from(1, 4), ids_from(50, keep)))) << keep;
    EXPECT_EQ(pool_.used_slots(), 1);
    EXPECT_EQ(pool_.used_logs(), keep == 2 || keep == 3 || keep == 5 ? 1 : 0);
    EXPECT_EQ(row.stored_positions(), Positions{4 + keep});
  }
}

TEST_F(RecurrentRowTest, RollbackToTheStartOfANewRowGivesTheEmptyOne) {
  RecurrentRow row(pool_);
  row.round_begin();
  append_states(row, layout_, ids_from(50, 3));
  row.round_rollback(0);
  EXPECT_TRUE(holds(row, {}));
  EXPECT_EQ(pool_.used_slots(), 0);
}

TEST_F(RecurrentRowTest, AnAbortInsideAStepRestoresTheCommittedState) {
  RecurrentRow row = row_of(ids_from(1, 4));
  row.round_begin();
  append_states(row, layout_, ids_from(50, 2), kEvery);
  row.reserve(3, kEvery);  // the step that fails
  row.round_rollback(0);
  EXPECT_TRUE(holds(row, ids_from(1, 4)));
  EXPECT_EQ(pool_.used_slots(), 1);
}

TEST_F(RecurrentRowTest, StoresCheckpointsWithinAChunkAndKeepsThem) {
  const Positions checkpoints = {2, 4, 7, 9, 30};
  RecurrentRow row = row_of(ids_from(1, 3));
  append_states(row, layout_, ids_from(4, 6), {StorePositions::at_end, checkpoints});  // to 9
  EXPECT_EQ(row.stored_positions(), (Positions{4, 7, 9}));
  append_states(row, layout_, ids_from(10, 2), {StorePositions::every, checkpoints});
  EXPECT_EQ(row.stored_positions(), (Positions{4, 7, 9, 11}));
  for (const std::int64_t n : {4, 7, 9, 11}) EXPECT_TRUE(holds(row.prefix(n), ids_from(1, n))) << n;
  EXPECT_EQ(row.clone().stored_positions(), (Positions{4, 7, 9, 11}));
  EXPECT_EQ(row.prefix(7).stored_positions(), (Positions{4, 7}));
  row.drop_checkpoints();
  EXPECT_EQ(row.stored_positions(), Positions{11});
  EXPECT_EQ(pool_.used_slots(), 1);
}

// A verify window that crosses a checkpoint keeps its slot, if the position is accepted.
TEST_F(RecurrentRowTest, ACheckpointInAWindowStaysIfItIsAccepted) {
  const Positions checkpoints = {6};
  for (const std::int64_t keep : {1, 2, 3}) {
    RecurrentRow row = row_of(ids_from(1, 4));
    row.round_begin();
    append_states(row, layout_, ids_from(5, 3), {StorePositions::every, checkpoints});
    row.round_rollback(keep);
    EXPECT_EQ(row.stored_positions(), keep == 1 ? Positions{5} : keep == 2 ? Positions{6} : (Positions{6, 7})) << keep;
  }
}

TEST_F(RecurrentRowTest, CopiesShareSlotsAndGoOnApart) {
  RecurrentRow row = row_of(ids_from(1, 5));
  RecurrentRow twin = row.clone();
  EXPECT_EQ(pool_.used_slots(), 1);
  append_states(twin, layout_, ids_from(50, 2));
  append_states(row, layout_, ids_from(60, 1));
  EXPECT_TRUE(holds(twin, joined(ids_from(1, 5), ids_from(50, 2))));
  EXPECT_TRUE(holds(row, joined(ids_from(1, 5), {60})));
  const RecurrentRow apart = row.extract();
  EXPECT_NE(apart.state().data(), row.state().data());
  EXPECT_TRUE(holds(apart, joined(ids_from(1, 5), {60})));
  EXPECT_EQ(RecurrentRow(pool_).extract().length(), 0);
}

TEST_F(RecurrentRowTest, LoadsTheBytesOfAState) {
  const RecurrentRow row = row_of(ids_from(1, 5));
  const std::vector<std::byte> bytes(row.state().begin(), row.state().end());
  EXPECT_EQ(bytes.size(), layout_.slot_bytes());
  RecurrentRow restored(pool_);
  restored.load(5, bytes);
  append_states(restored, layout_, ids_from(6, 2));
  EXPECT_TRUE(holds(restored, ids_from(1, 7)));
}

TEST_F(RecurrentRowTest, AFullPoolRefusesWithNumbersAndLeavesTheRow) {
  RecurrentRow row = row_of(ids_from(1, 5));
  const auto refusal = [](RecurrentRow& of, std::int64_t tokens, const StoreChoice& stores) -> std::string {
    try {
      of.reserve(tokens, stores);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::memory);
      return error.what();
    }
    return "reserved";
  };
  Positions checkpoints(15);
  std::iota(checkpoints.begin(), checkpoints.end(), 7);
  EXPECT_EQ(refusal(row, 20, {StorePositions::at_end, checkpoints}),
            "20 more positions need 16 recurrent slots of 176 bytes; 15 of 16 are free");
  EXPECT_TRUE(holds(row, ids_from(1, 5)));
  EXPECT_EQ(refusal(row, 16, {StorePositions::at_end, checkpoints}), "reserved");
  row.release_reserved();
  RecurrentPool one_log(layout_, {4, 1, 4});
  RecurrentRow window(one_log);
  append_states(window, layout_, ids_from(1, 2), kEvery);
  EXPECT_EQ(refusal(window, 2, kEvery),
            fmt::format("2 more positions need 1 recurrent logs of {} bytes; 0 of 1 are free", layout_.log_bytes(4)));
  EXPECT_EQ(one_log.used_slots(), 1);
  EXPECT_EQ(refusal(window, 2, {}), "reserved");
  window.release_reserved();
}

TEST_F(RecurrentRowTest, ChargesItsOwnPartOfTheMemoryPlan) {
  const std::size_t before = memory_use(MemoryPart::recurrent).now_bytes;
  {
    const RecurrentRow row = row_of(ids_from(1, 5));
    EXPECT_EQ(memory_use(MemoryPart::recurrent).now_bytes - before, layout_.slot_bytes());
  }
  pool_.trim();
  EXPECT_EQ(memory_use(MemoryPart::recurrent).now_bytes, before);
}

TEST_F(RecurrentRowTest, GroupsRollBackEveryRowByItsOwnCount) {
  RowGroup<RecurrentRow> group;
  group.merge_rows({row_of(ids_from(1, 2)), row_of(ids_from(10, 4)), row_of({})});
  group.round_begin();
  for (std::int64_t r = 0; r < 3; ++r) append_states(group.row(r), layout_, ids_from(100, 3), kEvery);
  group.round_rollback(std::array<std::int64_t, 3>{0, 2, 3});
  EXPECT_TRUE(holds(group.row(0), ids_from(1, 2)));
  EXPECT_TRUE(holds(group.row(1), joined(ids_from(10, 4), ids_from(100, 2))));
  EXPECT_TRUE(holds(group.row(2), ids_from(100, 3)));
  group.filter_rows(std::array<std::int64_t, 2>{2, 1});
  EXPECT_TRUE(holds(group.row(0), ids_from(100, 3)));
  EXPECT_EQ(pool_.used_slots(), 2);
}

using RecurrentRowDeathTest = RecurrentRowTest;

TEST_F(RecurrentRowDeathTest, ChecksProgrammingErrors) {
  RecurrentRow row = row_of(ids_from(1, 5));
  row.round_begin();
  append_states(row, layout_, ids_from(6, 3));
  EXPECT_DEATH(row.round_rollback(1), "rollback to 6, where no state was stored");
  EXPECT_DEATH(row.round_rollback(4), "keeps 4 of 3");
  EXPECT_DEATH(row.round_begin(), "inside a round");
  EXPECT_DEATH(row.prefix(8), "prefix of 8 of 5");
  EXPECT_DEATH(row.extract(), "inside a round");
  row.round_commit();
  EXPECT_DEATH(row.prefix(5), "where no state is stored");
  EXPECT_DEATH(row.round_commit(), "without round_begin");
  row.reserve(3, {});
  EXPECT_DEATH(row.reserve(3, {}), "1 states are reserved");
  EXPECT_DEATH(row.advance(2), "where no state was stored \\(the last before it is 8\\)");
  row.release_reserved();
  EXPECT_DEATH(RecurrentRow(pool_).load(3, {}), "0 bytes");
  EXPECT_DEATH(row.reserve(6, kEvery), "a window of 6 tokens, a log holds 4");
  append_states(row, layout_, ids_from(9, 3), kEvery);
  EXPECT_DEATH(row.state(), "the state after 11 positions is a slot and 2 tokens of a log");
}

}  // namespace
}  // namespace outrider
