// runtime.md 1.6: a failure at every allocation and every fallible call of each operation; the error surfaces, owners
// are unchanged, and the balance of live allocations is zero.
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "base/counted_new.h"
#include "base/memory.h"
#include "state/row_group.h"
#include "state/test_prefix.h"
#include "state/test_recurrent.h"

namespace outrider {
namespace {

using Group = RowGroup<KvRow>;

class StateFailure : public testing::Test {
 protected:
  void SetUp() override {
    if (!kHeapIsCounted) GTEST_SKIP() << "operator new is not counted under this sanitizer";
  }
  // Runs `operation` with the plan's failure. After a failure all that it allocated must be gone, KV blocks included;
  // only vectors of a row that were empty before may have got their room (`grown_vectors`). The caller makes its owners
  // afresh for every plan: room left by an earlier attempt would hide points of a later one.
  bool finished(FailurePlan& plan, const std::function<void()>& operation, std::int64_t grown_vectors = 0) {
    pool_.trim();  // else the pools serve blocks and slots without allocating
    states_.trim();
    const std::int64_t used = pool_.used_blocks(), blocks = states_.kv().used_blocks();
    const std::int64_t slots = states_.recurrent()->used_slots(), logs = states_.recurrent()->used_logs();
    const std::size_t kv_bytes = memory_use(MemoryPart::kv).now_bytes;
    const std::size_t slot_bytes = memory_use(MemoryPart::recurrent).now_bytes;
    const std::int64_t heap = live_heap_blocks();
    if (plan.run(operation)) return true;
    pool_.trim();
    states_.trim();
    EXPECT_EQ(states_.kv().used_blocks(), blocks) << plan.point();
    EXPECT_EQ(states_.recurrent()->used_slots(), slots) << plan.point();
    EXPECT_EQ(states_.recurrent()->used_logs(), logs) << plan.point();
    EXPECT_EQ(memory_use(MemoryPart::recurrent).now_bytes, slot_bytes) << plan.point();
    EXPECT_LE(live_heap_blocks(), heap + grown_vectors) << plan.point();
    EXPECT_EQ(pool_.used_blocks(), used) << plan.point();
    EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, kv_bytes) << plan.point();
    return false;
  }
  KvRow row_of(const RowModel& ids) {
    KvRow row(pool_);
    append_ids(row, layout_, ids);
    return row;
  }
  bool holds(const KvRow& row, const RowModel& ids) { return outrider::holds(row, layout_, ids); }

  KvLayout layout_ = test_layout();
  KvPool pool_{layout_, 64};

  StateRow state_row_of(const RowModel& ids) {
    StateRow row(states_);
    run_step(row, ids, {});
    return row;
  }
  void run_step(StateRow& row, const RowModel& ids, const StoreChoice& stores) {
    row.reserve(std::ssize(ids), stores);
    write_step(state_layout_, row.batch_row(0, std::ssize(ids), 0), ids);
    row.advance(std::ssize(ids));
  }
  bool holds(const StateRow& row, const RowModel& ids) { return outrider::holds(row, state_layout_, ids); }

  StateLayout state_layout_ = {layout_, test_recurrent_layout()};
  StatePool states_{state_layout_, {64, 0, {64, 64, 59}}};
};

// Points of one block that the pool has to make: a slab, its memory (small ones come from aligned_alloc) and its list
// of buffers.
constexpr std::int64_t kBlockPoints = 3;
// Points of a new row: its insides and its two vectors.
constexpr std::int64_t kRowPoints = 3;

TEST_F(StateFailure, ReserveLeavesTheRow) {
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    KvRow row = row_of(ids_from(1, 70));
    const KvRow twin = row.clone();  // so that reserve copies a block, too
    const bool done = finished(plan, [&] { row.reserve(200); });
    EXPECT_TRUE(holds(row, ids_from(1, 70)));
    EXPECT_TRUE(holds(twin, ids_from(1, 70)));
    EXPECT_EQ(row.blocks().size(), done ? 5u : 2u);
    EXPECT_EQ(row.blocks()[1] == twin.blocks()[1], !done);
  });
  EXPECT_EQ(failures, 1 + 2 + 4 * kBlockPoints);  // the call, two vectors, three new blocks and a copied one
}

TEST_F(StateFailure, AppendToAnEmptyRowLeavesIt) {
  const TestPlanes planes = test_planes(layout_, ids_from(1, 70));
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    KvRow row(pool_);
    const bool done = finished(plan, [&] { row.append(planes.k, planes.v, 70); }, 2);
    EXPECT_TRUE(holds(row, done ? ids_from(1, 70) : RowModel{}));
  });
  EXPECT_EQ(failures, 1 + 2 + 2 * kBlockPoints);
}

TEST_F(StateFailure, PrefixAndExtractLeaveTheRow) {
  const KvRow row = row_of(ids_from(1, 150));
  const std::int64_t prefix_failures = for_every_failure([&](FailurePlan& plan) {
    finished(plan, [&] { const KvRow head = row.prefix(100); });
    EXPECT_TRUE(holds(row, ids_from(1, 150)));
  });
  EXPECT_EQ(prefix_failures, kRowPoints);
  const std::int64_t extract_failures = for_every_failure([&](FailurePlan& plan) {
    finished(plan, [&] { const KvRow copy = row.extract(); });
    EXPECT_TRUE(holds(row, ids_from(1, 150)));
  });
  EXPECT_EQ(extract_failures, kRowPoints + 3 * kBlockPoints);
}

TEST_F(StateFailure, MergeLeavesSourcesAndTarget) {
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    const KvRow late = row_of(ids_from(400, 10));
    Group group;
    group.merge_rows({row_of(ids_from(1, 70)), row_of(ids_from(200, 3))});
    const bool done = finished(plan, [&] { group.merge_rows({group, late}); });
    ASSERT_EQ(group.row_count(), done ? 3 : 2);
    EXPECT_TRUE(holds(group.row(0), ids_from(1, 70)));
    EXPECT_TRUE(holds(group.row(1), ids_from(200, 3)));
    EXPECT_TRUE(holds(late, ids_from(400, 10)));
  });
  EXPECT_EQ(failures, 1 + 1 + 3 * kRowPoints + 1);  // the call, the new rows' vector, the rows, the change
}

TEST_F(StateFailure, FilterLeavesTheGroup) {
  const std::int64_t keep[] = {2, 0};
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    Group group;
    group.merge_rows({row_of(ids_from(1, 70)), row_of(ids_from(200, 3)), row_of(ids_from(300, 3))});
    const bool done = finished(plan, [&] { group.filter_rows(keep); });
    ASSERT_EQ(group.row_count(), done ? 2 : 3);
    EXPECT_TRUE(holds(group.row(0), done ? ids_from(300, 3) : ids_from(1, 70)));
    EXPECT_TRUE(holds(group.row(1), done ? ids_from(1, 70) : ids_from(200, 3)));
  });
  EXPECT_EQ(failures, 5);  // the call, the names seen, the change, its indices, its rows
}

TEST_F(StateFailure, ExtractRowLeavesTheGroup) {
  Group group;
  group.merge_rows({row_of(ids_from(1, 70))});
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    finished(plan, [&] { const KvRow copy = group.extract_row(0); });
    EXPECT_TRUE(holds(group.row(0), ids_from(1, 70)));
  });
  EXPECT_EQ(failures, kRowPoints + 2 * kBlockPoints);
}

TEST_F(StateFailure, AnAppendThatFailsInsideARoundRollsBackToItsBegin) {
  const TestPlanes planes = test_planes(layout_, ids_from(900, 3));
  const std::array<std::int64_t, 2> keep_none{};
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    Group group;
    group.merge_rows({row_of(ids_from(1, 63)), row_of(ids_from(200, 64))});
    const bool done = finished(plan, [&] {
      group.round_begin();
      try {
        for (std::int64_t r = 0; r < 2; ++r) group.row(r).append(planes.k, planes.v, 3);
      } catch (...) {
        group.round_rollback(keep_none);
        throw;
      }
      group.round_commit();
    });
    EXPECT_TRUE(holds(group.row(0), done ? joined(ids_from(1, 63), ids_from(900, 3)) : ids_from(1, 63)));
    EXPECT_TRUE(holds(group.row(1), done ? joined(ids_from(200, 64), ids_from(900, 3)) : ids_from(200, 64)));
  });
  EXPECT_EQ(failures, 2 * (1 + 2 + kBlockPoints));
}

TEST_F(StateFailure, ChangesOfTwoGroupsPublishTogetherOrNotAtAll) {
  const std::int64_t keep[] = {1};
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    const KvRow late = row_of(ids_from(400, 10));
    Group target;
    Group draft;
    target.merge_rows({row_of(ids_from(1, 70)), row_of(ids_from(200, 3))});
    draft.merge_rows({row_of(ids_from(500, 5)), row_of(ids_from(600, 3))});
    const RowSource<KvRow> sources[] = {draft, late};
    const StatePreparer preparers[] = {[&] { return target.prepare_filter(keep); },
                                       [&] { return draft.prepare_merge(sources); }};
    const bool done = finished(plan, [&] { apply_state_changes(preparers); });
    ASSERT_EQ(target.row_count(), done ? 1 : 2);
    ASSERT_EQ(draft.row_count(), done ? 3 : 2);
    EXPECT_TRUE(holds(target.row(0), done ? ids_from(200, 3) : ids_from(1, 70)));
    EXPECT_TRUE(holds(draft.row(0), ids_from(500, 5)));
  });
  EXPECT_EQ(failures, 1 + 5 + 1 + 1 + 3 * kRowPoints + 1);  // the list of changes, the filter, the merge
}

// Points of a new StateRow: its two rows' insides, and its vectors: two of blocks, one of marks.
constexpr std::int64_t kStateRowPoints = 5;

TEST_F(StateFailure, AStepOfBothPartsIsReservedWholeOrNotAtAll) {
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    StateRow row = state_row_of(ids_from(1, 70));
    const bool done = finished(plan, [&] { row.reserve(60, {StorePositions::every, {}}); }, 0);
    EXPECT_TRUE(holds(row, ids_from(1, 70)));
    EXPECT_EQ(row.kv().blocks().size(), done ? 3U : 2U);
    EXPECT_EQ(row.batch_row(0, 60, 0).recurrent.stores.size(), done ? 1U : 0U);
    EXPECT_EQ(row.batch_row(0, 60, 0).recurrent.write_log != nullptr, done);
    if (done) return;
    run_step(row, ids_from(71, 2), {});  // the row goes on as if nothing had been asked
    EXPECT_TRUE(holds(row, ids_from(1, 72)));
  });
  // States: the call, the reservation, its two vectors, room for marks, a log, a slot. Blocks: the call, room, a block.
  EXPECT_EQ(failures, 1 + 3 + 1 + 2 * kBlockPoints + 1 + 2 + kBlockPoints);
}

TEST_F(StateFailure, SharingAndCopyingBothPartsLeaveTheRow) {
  const StateRow row = state_row_of(ids_from(1, 70));
  const std::int64_t clones = for_every_failure([&](FailurePlan& plan) {
    finished(plan, [&] { const StateRow twin = row.clone(); });
    EXPECT_TRUE(holds(row, ids_from(1, 70)));
  });
  EXPECT_EQ(clones, kStateRowPoints);
  const std::int64_t copies = for_every_failure([&](FailurePlan& plan) {
    finished(plan, [&] { const StateRow copy = row.extract(); });
    EXPECT_TRUE(holds(row, ids_from(1, 70)));
  });
  EXPECT_EQ(copies, kStateRowPoints + 2 * kBlockPoints + kBlockPoints);
}

TEST_F(StateFailure, AVerifyRoundThatFailsInsideRollsBothPartsBack) {
  const std::array<std::int64_t, 2> keep_none{};
  for_every_failure([&](FailurePlan& plan) {
    states_.trim();
    const std::int64_t heap = live_heap_blocks();
    {
      RowGroup<StateRow> group;
      group.merge_rows({state_row_of(ids_from(1, 63)), state_row_of(ids_from(200, 4))});
      const auto operation = [&] {
        group.round_begin();
        try {
          run_step(group.row(0), ids_from(900, 3), {StorePositions::every, {}});
          run_step(group.row(1), ids_from(950, 2), {StorePositions::every, {}});
        } catch (...) {
          group.round_rollback(keep_none);
          throw;
        }
        group.round_rollback(std::array<std::int64_t, 2>{2, 0});
      };
      const bool done = finished(plan, operation, 4);  // the room of each row's reserved slots, and of its stores
      EXPECT_TRUE(holds(group.row(0), done ? joined(ids_from(1, 63), ids_from(900, 2)) : ids_from(1, 63)));
      EXPECT_TRUE(holds(group.row(1), ids_from(200, 4)));
    }
    states_.trim();
    EXPECT_LE(live_heap_blocks(), heap) << plan.point();
  });
}

TEST_F(StateFailure, APrefixIsPublishedWholeOrNotAtAll) {
  for (const StoreKind kind : {StoreKind::plain, StoreKind::hybrid, StoreKind::hybrid_with_head}) {
    const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
      PrefixRig rig(kind, 20, 6);
      rig.publish(rig.row_of(ids_from(1, 128)), {128});
      const OfferedRow row = rig.row_of(joined(ids_from(1, 128), ids_from(500, 192)));
      const std::int64_t blocks = rig.pool().kv().used_blocks(), drafts = rig.draft_pool().used_blocks();
      const std::int64_t stored = rig.store().blocks(), checkpoints = rig.store().checkpoints();
      const std::size_t charged = memory_use(MemoryPart::prefix).now_bytes;
      const std::int64_t heap = live_heap_blocks();
      const bool done = plan.run([&] { rig.publish(row, {64, 192, 256}); });
      if (!done) {
        EXPECT_EQ(live_heap_blocks(), heap) << plan.point();
        EXPECT_EQ(memory_use(MemoryPart::prefix).now_bytes, charged) << plan.point();
        EXPECT_EQ(rig.store().blocks(), stored) << plan.point();
        EXPECT_EQ(rig.store().checkpoints(), checkpoints) << plan.point();
        EXPECT_EQ(rig.pool().kv().used_blocks(), blocks) << plan.point();
        EXPECT_EQ(rig.draft_pool().used_blocks(), drafts) << plan.point();
      }
      EXPECT_EQ(rig.restored_tokens(row.ids), done ? 256 : 128);
      EXPECT_EQ(rig.restored_tokens(first_of(row.ids, 100)), done || rig.any_block() ? 64 : 0);
    });
    EXPECT_GT(failures, 10);
  }
}

TEST_F(StateFailure, ARestoreThatFailsLeavesTheStore) {
  for (const StoreKind kind : {StoreKind::plain, StoreKind::hybrid_with_head}) {
    const RowModel ids = ids_from(1, 192);
    const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
      PrefixRig rig(kind, 20, 6);
      rig.publish(rig.row_of(ids), {192});
      const std::int64_t heap = live_heap_blocks(), blocks = rig.pool().kv().used_blocks();
      plan.run([&] { EXPECT_EQ(rig.restore(ids)->tokens, 192); });
      EXPECT_EQ(live_heap_blocks(), heap) << plan.point();
      EXPECT_EQ(rig.pool().kv().used_blocks(), blocks) << plan.point();
      EXPECT_EQ(rig.restored_tokens(ids), 192);
    });
    EXPECT_GT(failures, 5);
  }
}

}  // namespace
}  // namespace outrider
