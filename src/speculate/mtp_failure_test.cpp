// runtime.md 1.6 for draft rows: a failure at every allocation and every fallible call of each operation; the error
// surfaces, every row is as its last committed round left it, and the balance of live allocations is zero.
#include <gtest/gtest.h>

#include "base/counted_new.h"
#include "base/memory.h"
#include "speculate/scripted_draft.h"

namespace outrider {
namespace {

using Floats = std::vector<float>;

constexpr std::int64_t kBothRows[] = {0, 1};

struct Snapshot {
  std::vector<Floats> keys, values;
  Floats hiddens;
  std::vector<std::int64_t> carried;
  bool operator==(const Snapshot&) const = default;
};

Snapshot snapshot(const DraftScene& scene) {
  Snapshot out;
  for (std::int64_t r = 0; r < scene.group->row_count(); ++r) {
    out.keys.push_back(scene.keys(r));
    out.values.push_back(scene.values(r));
    out.hiddens.push_back(scene.hidden(r));
    out.carried.push_back(scene.group->carried(r));
  }
  return out;
}

// With carried pairs written: what a copy of the rows would hold.
Snapshot flushed(DraftScene& scene) {
  for (std::int64_t r = 0; r < scene.group->row_count(); ++r) scene.group->extract_row(scene.step(), r);
  return snapshot(scene);
}

class MtpFailure : public testing::TestWithParam<Refresh> {
 protected:
  void SetUp() override {
    if (!kHeapIsCounted) GTEST_SKIP() << "operator new is not counted under this sanitizer";
  }
  // Rows 0 (63 tokens, one carried pair under from_target: the next pair needs a new block) and 1 (3 tokens).
  static std::unique_ptr<DraftScene> scene_of_two() {
    auto scene = std::make_unique<DraftScene>(GetParam());
    scene->append_cold(2);
    std::vector<std::int32_t> prompt(61);
    for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i) + 1;
    scene->prefill_tens({prompt, {11, 12, 13}});
    ScriptedPort port = port_that_proposes([](const DraftPick&, float) { return 500; });
    scene->draft({{0, 62, 1, 0}}, &port);
    scene->commit({{0, 1, {620, 5000}}});
    return scene;
  }
  // Runs `operation` on a scene made afresh with a failure at every point. After a failure the rows are those of
  // before, and all that the operation allocated is gone; but KvRow keeps the room its two vectors grew to.
  template <class Operation>
  std::int64_t fail_everywhere(Operation operation) {
    const std::unique_ptr<DraftScene> done = scene_of_two();
    operation(*done);
    const Snapshot expected = flushed(*done);
    return for_every_failure([&](FailurePlan& plan) {
      const std::unique_ptr<DraftScene> scene = scene_of_two();
      const Snapshot before = snapshot(*scene);
      scene->pool.trim();
      const std::int64_t heap = live_heap_blocks(), blocks = scene->pool.used_blocks();
      const std::size_t kv_bytes = memory_use(MemoryPart::kv).now_bytes;
      if (plan.run([&] { operation(*scene); })) return;
      scene->pool.trim();
      EXPECT_EQ(live_heap_blocks(), heap) << plan.point();
      EXPECT_EQ(scene->pool.used_blocks(), blocks) << plan.point();
      EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, kv_bytes) << plan.point();
      // A copy may have written the carried pairs before it failed: they are the same row.
      if (const Snapshot now = snapshot(*scene); now.carried != before.carried) {
        const std::unique_ptr<DraftScene> same = scene_of_two();
        EXPECT_EQ(now, flushed(*same)) << plan.point();
      } else {
        EXPECT_EQ(now, before) << plan.point();
      }
      for (std::int64_t r = 0; r < scene->group->row_count(); ++r) EXPECT_FALSE(scene->group->in_round(r));
      operation(*scene);  // the round runs again
      EXPECT_EQ(flushed(*scene), expected) << plan.point();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Policies, MtpFailure, testing::Values(Refresh::from_target, Refresh::as_drafted),
                         [](const auto& info) {
                           return info.param == Refresh::from_target ? "from_target" : "as_drafted";
                         });

// What a pass of the module may throw, too.
void arm_module(DraftScene& scene) {
  scene.module.before_pass = [] { fallible_point("DraftModule"); };
}

TEST_P(MtpFailure, PrefillLeavesTheRows) {
  const std::int64_t failures = fail_everywhere([](DraftScene& scene) {
    arm_module(scene);
    scene.prefill_tens({{4, 5, 6, 7}, {14, 15}});
  });
  EXPECT_GE(failures, 8);
}

TEST_P(MtpFailure, DraftLeavesTheRows) {
  const std::int64_t failures = fail_everywhere([](DraftScene& scene) {
    arm_module(scene);
    ScriptedPort port = port_that_proposes([](const DraftPick&, float) {
      fallible_point("DraftPort");
      return 7;
    });
    scene.draft({{0, 4, 3, 0}, {1, 14, 0, 0}}, &port);
    scene.group->abort(kBothRows);
  });
  EXPECT_GE(failures, 10);
}

TEST_P(MtpFailure, CommitLeavesTheRowsAsBeforeTheRound) {
  const std::int64_t failures = fail_everywhere([](DraftScene& scene) {
    ScriptedPort port = port_that_proposes([](const DraftPick&, float) { return 7; });
    scene.draft({{0, 4, 2, 0}, {1, 14, 1, 0}}, &port);
    arm_module(scene);
    try {
      scene.commit({{0, 2, {1, 2, 3}}, {1, 0, {4}}});
    } catch (...) {
      scene.group->abort(kBothRows);  // needed when our own vectors failed before the call
      throw;
    }
  });
  EXPECT_GE(failures, 10);
}

TEST_P(MtpFailure, AppendFilterAndCopiesLeaveTheGroup) {
  EXPECT_GE(fail_everywhere([](DraftScene& scene) {
              const std::optional<MtpState> state = scene.group->extract_row(scene.step(), 1);
              scene.group->append(std::vector<MtpJoin>{{nullptr}, {&*state}});
            }),
            12);
  EXPECT_GE(fail_everywhere([](DraftScene& scene) { scene.group->filter_rows(std::vector<std::int64_t>{1, 0}); }), 4);
  EXPECT_GE(fail_everywhere([](DraftScene& scene) {
              const MtpCheckpoint stored = scene.group->checkpoint(scene.step(), 1);
              const MtpState state = scene.group->restore(stored, 3);
            }),
            8);
}

TEST_P(MtpFailure, AFlushThatFailsKeepsTheCarriedPairs) {
  EXPECT_GE(fail_everywhere([](DraftScene& scene) {
              arm_module(scene);
              scene.group->checkpoint(scene.step(), 0);
            }),
            GetParam() == Refresh::from_target ? 6 : 3);
}

// runtime.md 1.3: the draft rows' change and another owner's are published together or not at all.
TEST_P(MtpFailure, AChangeBesideAnotherOwnersIsAllOrNothing) {
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    const std::unique_ptr<DraftScene> scene = scene_of_two();
    ScriptedPort port = port_that_proposes([](const DraftPick&, float) { return 7; });
    DraftScene other(GetParam());
    other.append_cold(1);
    scene->draft({{0, 4, 2, 0}}, &port);
    const Snapshot before = snapshot(*scene);
    float context[] = {1, 2, 3};
    std::vector<std::int32_t> tokens = {1, 2};
    RowResult results[2];
    const MtpVerdict verdict{0, 1, {context, 3, 1, 1}};
    const MtpFeed feed{0, tokens, {context, 2, 1, 1}};
    const StatePreparer preparers[] = {
        [&] { return scene->group->prepare_commit(scene->step(), {&verdict, 1}, {&results[0], 1}); },
        [&] { return other.group->prepare_prefill(other.step(), {&feed, 1}, {&results[1], 1}); }};
    const bool done = plan.run([&] { apply_state_changes(preparers); });
    EXPECT_EQ(other.group->processed(0), done ? 2 : 0) << plan.point();
    EXPECT_EQ(snapshot(*scene) == before, !done) << plan.point();
    const std::int64_t row[] = {0};
    scene->group->abort(row);
    EXPECT_EQ(snapshot(*scene) == before, !done);
  });
  EXPECT_GE(failures, 8);
}

}  // namespace
}  // namespace outrider
