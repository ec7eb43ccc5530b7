#include "state/state_row.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "state/row_group.h"
#include "state/test_recurrent.h"

namespace outrider {
namespace {

constexpr StoreChoice kEvery = {StorePositions::every, {}};

class StateRowTest : public testing::Test {
 protected:
  // A step as the engine runs it: reserve, write through the batch row, advance.
  void step(StateRow& row, const RowModel& ids, const StoreChoice& stores = {}) {
    row.reserve(std::ssize(ids), stores);
    const BatchRow place = row.batch_row(7, std::ssize(ids), 99);
    EXPECT_EQ(place.begin, 7);
    EXPECT_EQ(place.end, 7 + std::ssize(ids));
    EXPECT_EQ(place.position, row.length());
    EXPECT_EQ(place.planned_tokens, 99);
    write_step(layout_, place, ids);
    row.advance(std::ssize(ids));
  }
  bool holds(const StateRow& row, const RowModel& ids) { return outrider::holds(row, layout_, ids); }

  StateLayout layout_ = {test_layout(), test_recurrent_layout()};
  StatePool pool_{layout_, {16, 0, {12, 12, 4}}};
};

TEST_F(StateRowTest, KeepsBothPartsInStep) {
  StateRow row(pool_);
  step(row, ids_from(1, 70));
  step(row, ids_from(100, 1));
  step(row, ids_from(200, 3), kEvery);
  EXPECT_TRUE(holds(row, joined(joined(ids_from(1, 70), {100}), ids_from(200, 3))));
  EXPECT_EQ(row.signature(), "kv:plain+recurrent");
}

TEST_F(StateRowTest, AModelWithoutRecurrentLayersHasItsKvRowAlone) {
  StatePool pool({test_layout(), {}}, {16});
  EXPECT_EQ(pool.recurrent(), nullptr);
  StateRow row(pool);
  row.reserve(3);
  EXPECT_TRUE(row.batch_row(0, 3, 3).recurrent.stores.empty());
  row.advance(2);
  EXPECT_EQ(row.length(), 2);
  EXPECT_EQ(row.signature(), "kv:plain");
  EXPECT_EQ(row.recurrent(), nullptr);
  EXPECT_EQ(row.prefix(1).length(), 1);
}

TEST_F(StateRowTest, ReservesBothPartsOrNeither) {
  StateRow row(pool_);
  step(row, ids_from(1, 5));
  std::vector<std::int64_t> checkpoints(11);
  std::iota(checkpoints.begin(), checkpoints.end(), 6);
  EXPECT_THROW(row.reserve(12, {StorePositions::at_end, checkpoints}), Error);  // slots: 11 are free
  EXPECT_EQ(pool_.kv().used_blocks(), 1);
  EXPECT_THROW(row.reserve(16 * 64), Error);  // blocks: 15 are free
  EXPECT_EQ(pool_.recurrent()->used_slots(), 1);
  EXPECT_TRUE(holds(row, ids_from(1, 5)));
  step(row, ids_from(6, 2));
  EXPECT_TRUE(holds(row, ids_from(1, 7)));
}

TEST_F(StateRowTest, RoundsRollBothPartsBackTogether) {
  for (std::int64_t keep = 0; keep <= 4; ++keep) {
    RowGroup<StateRow> group;
    StateRow first(pool_), second(pool_);
    step(first, ids_from(1, 62));
    step(second, ids_from(100, 2));
    group.merge_rows({first, second});
    group.round_begin();
    step(group.row(0), ids_from(300, 4), kEvery);  // over the end of a block
    step(group.row(1), ids_from(400, 4));          // a chunk: nothing or all of it
    group.round_rollback(std::array<std::int64_t, 2>{keep, keep == 4 ? 4 : 0});
    EXPECT_TRUE(holds(group.row(0), joined(ids_from(1, 62), ids_from(300, keep)))) << keep;
    EXPECT_TRUE(holds(group.row(1), joined(ids_from(100, 2), ids_from(400, keep == 4 ? 4 : 0)))) << keep;
    EXPECT_TRUE(holds(first, ids_from(1, 62)));
  }
}

TEST_F(StateRowTest, PrefixesExistAtStoredPositions) {
  const std::vector<std::int64_t> checkpoints = {64};
  StateRow row(pool_);
  step(row, ids_from(1, 100), {StorePositions::at_end, checkpoints});
  EXPECT_TRUE(holds(row.prefix(64), ids_from(1, 64)));
  EXPECT_TRUE(holds(row.prefix(0), {}));
  EXPECT_DEATH(row.prefix(65), "where no state is stored");
  const StateRow apart = row.extract();
  EXPECT_TRUE(holds(apart, ids_from(1, 100)));
  EXPECT_NE(apart.recurrent()->state().data(), row.recurrent()->state().data());
}

TEST_F(StateRowTest, UnlikeKindsNeverJoin) {
  StatePool plain({test_layout(), {}}, {16});
  RowGroup<StateRow> group;
  const StateRow a(pool_), b(plain);
  EXPECT_FALSE(a.joins(b));
  try {
    group.merge_rows({a, b});
    FAIL() << "merged";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rows of unlike kinds cannot join: kv:plain+recurrent and kv:plain");
  }
}

TEST_F(StateRowTest, PartsOfUnequalLengthAreAProgrammingError) {
  KvRow kv(pool_.kv());
  append_ids(kv, layout_.kv, ids_from(1, 3));
  EXPECT_DEATH(StateRow(std::move(kv), RecurrentRow(*pool_.recurrent())), "3 KV positions, a recurrent state after 0");
}

}  // namespace
}  // namespace outrider
