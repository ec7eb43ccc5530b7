#include "base/failure_injection.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/memory.h"

namespace outrider {
namespace {

TEST(FailurePlan, FailsTheNthPointAndNoOther) {
  int passed = 0;
  const auto operation = [&] {
    passed = 0;
    for (const char* name : {"first", "second", "third"}) {
      fallible_point(name);
      ++passed;
    }
  };
  FailurePlan second(2);
  EXPECT_FALSE(second.run(operation));
  EXPECT_STREQ(second.point(), "second");
  EXPECT_EQ(passed, 1);
  FailurePlan beyond(4);
  EXPECT_TRUE(beyond.run(operation));
  EXPECT_FALSE(beyond.fired());
  EXPECT_EQ(passed, 3);
  operation();  // disarmed
}

TEST(FailureCountdown, MayCountPointsOfOneNameAlone) {
  FailureCountdown countdown{.left = 2, .only = "second"};
  armed_failure = &countdown;
  fallible_point("first");
  fallible_point("second");
  fallible_point("first");
  EXPECT_THROW(fallible_point("second"), InjectedFailure);
  fallible_point("second");
  armed_failure = nullptr;
  EXPECT_STREQ(countdown.fired, "second");
  EXPECT_EQ(countdown.passed, 3);
}

TEST(FailurePlan, ReportsAFailureThatWasSwallowed) {
  FailurePlan plan(1);
  EXPECT_THROW(plan.run([] {
    try {
      fallible_point("first");
    } catch (const Error&) {
    }
  }),
               std::logic_error);
}

TEST(FailurePlan, PassesOnAFailureThatIsNotItsOwn) {
  FailurePlan plan(5);
  EXPECT_THROW(plan.run([] { throw Error(ErrorKind::data, "own"); }), Error);
}

TEST(FailurePlan, ConcernsItsThreadOnly) {
  std::atomic<bool> armed = false;
  std::thread other([&] {  // starting a thread allocates, so it starts before the plan is armed
    while (!armed) std::this_thread::yield();
    fallible_point("elsewhere");
  });
  FailurePlan plan(1);
  EXPECT_TRUE(plan.run([&] {
    armed = true;
    other.join();
  }));
}

TEST(ForEveryFailure, VisitsEveryPointOnce) {
  std::string visited;
  EXPECT_EQ(for_every_failure([&](FailurePlan& plan) {
              if (!plan.run([] {
                    for (const char* name : {"a", "b", "c"}) fallible_point(name);
                  }))
                visited += plan.point();
            }),
            3);
  EXPECT_EQ(visited, "abc");
}

TEST(AlignedBuffer, IsAFalliblePointThatLeavesNothingBehind) {
  const std::size_t before = memory_use().now_bytes;
  FailurePlan plan(2);
  EXPECT_FALSE(plan.run([] {
    const AlignedBuffer first(1000, MemoryPart::scratch);
    const AlignedBuffer second(1000, MemoryPart::scratch);
  }));
  EXPECT_STREQ(plan.point(), "AlignedBuffer");
  EXPECT_EQ(memory_use().now_bytes, before);
}

}  // namespace
}  // namespace outrider
