#include "base/resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <stdexcept>

#include "base/failure_injection.h"

namespace outrider {
namespace {

using testing::ElementsAre;

// Notes its release; throws from it if told to.
struct NotedRelease {
  std::vector<int>* released;
  int failing = -1;
  void operator()(int& item) const {
    released->push_back(item);
    if (item == failing) throw Error(ErrorKind::data, fmt::format("item {} is stuck", item), "pull harder");
  }
};
using Item = OwnedResource<int, NotedRelease>;

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(OwnedResource, IsReleasedOnceByItsDestructor) {
  std::vector<int> released;
  {
    Item item(7, NotedRelease{&released});
    EXPECT_EQ(item.borrow(), 7);
    item.borrow() = 8;
    EXPECT_TRUE(released.empty());
  }
  EXPECT_THAT(released, ElementsAre(8));
}

TEST(OwnedResource, IsReleasedOnceWhenClosedAgain) {
  std::vector<int> released;
  {
    Item item(7, NotedRelease{&released});
    item.close();
    item.close();
    EXPECT_FALSE(item.owns());
  }
  EXPECT_THAT(released, ElementsAre(7));
}

TEST(OwnedResource, GivesTheValueAwayWithoutReleasingIt) {
  std::vector<int> released;
  {
    Item item(7, NotedRelease{&released});
    EXPECT_EQ(item.transfer(), 7);
    item.close();
  }
  EXPECT_TRUE(released.empty());
}

TEST(OwnedResource, RefusesUseAfterItsEnd) {
  std::vector<int> released;
  for (const bool transferred : {false, true}) {
    Item item(7, NotedRelease{&released});
    if (transferred)
      item.transfer();
    else
      item.close();
    for (const auto use : {+[](Item& ended) { ended.borrow(); }, +[](Item& ended) { ended.transfer(); }}) {
      try {
        use(item);
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "resource ownership has ended");
      }
    }
  }
}

TEST(OwnedResource, EndsEvenIfItsReleaseThrows) {
  std::vector<int> released;
  Item item(7, NotedRelease{&released, 7});
  EXPECT_THROW(item.close(), Error);
  item.close();
  EXPECT_THAT(released, ElementsAre(7));
}

TEST(OwnedResource, ADestructorLogsAFailingReleaseInsteadOfThrowing) {
  std::vector<int> released;
  testing::internal::CaptureStderr();
  {
    const Item item(7, NotedRelease{&released, 7});
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("item 7 is stuck"));
}

TEST(OwnedResource, AMovedFromOneOwnsNothing) {
  std::vector<int> released;
  {
    Item item(7, NotedRelease{&released});
    Item moved(std::move(item));
    EXPECT_FALSE(item.owns());  // NOLINT: the state after a move is the subject
    EXPECT_TRUE(moved.owns());
  }
  EXPECT_THAT(released, ElementsAre(7));
}

TEST(OwnedResource, HoldsMoveOnlyValuesAndDestroysThem) {
  auto watched = std::make_shared<int>(1);
  OwnedResource<std::unique_ptr<std::shared_ptr<int>>> holder(std::make_unique<std::shared_ptr<int>>(watched));
  EXPECT_EQ(watched.use_count(), 2);
  holder.close();
  EXPECT_EQ(watched.use_count(), 1);
}

class ReleaseAll : public testing::Test {
 protected:
  void add(int item, int failing) { items_.emplace_back(item, NotedRelease{&released_, failing}); }
  std::vector<int> released_;
  std::vector<Item> items_;
};

TEST_F(ReleaseAll, ReleasesEveryItemAndIsHarmlessTwice) {
  for (int i = 0; i < 3; ++i) add(i, -1);
  release_all(items_);
  release_all(items_);
  EXPECT_THAT(released_, ElementsAre(0, 1, 2));
}

TEST_F(ReleaseAll, PassesOneFailureOnAsItIsAfterReleasingTheRest) {
  for (int i = 0; i < 3; ++i) add(i, 1);
  try {
    release_all(items_);
    FAIL() << "no error";
  } catch (const AggregateError&) {
    FAIL() << "one failure needs no aggregate";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "item 1 is stuck");
    EXPECT_EQ(error.kind(), ErrorKind::data);
  }
  EXPECT_THAT(released_, ElementsAre(0, 1, 2));
}

TEST_F(ReleaseAll, JoinsSeveralFailuresInOneAggregate) {
  for (int i = 0; i < 3; ++i) add(i, i == 1 ? -1 : i);
  try {
    release_all(items_);
    FAIL() << "no error";
  } catch (const AggregateError& error) {
    EXPECT_STREQ(error.what(), "cleanup failed: item 0 is stuck; item 2 is stuck");
    EXPECT_EQ(error.causes().size(), 2u);
    EXPECT_EQ(error.hint(), "pull harder");
  }
  EXPECT_THAT(released_, ElementsAre(0, 1, 2));
}

TEST_F(ReleaseAll, NeverMasksTheFailureInFlight) {
  add(0, 0);
  add(1, -1);
  try {
    try {
      throw std::runtime_error("the step broke");
    } catch (...) {
      release_all(items_, std::current_exception());
    }
    FAIL() << "no error";
  } catch (const AggregateError& error) {
    EXPECT_STREQ(error.what(), "execution and cleanup failed: the step broke; item 0 is stuck");
    ASSERT_EQ(error.causes().size(), 2u);
    EXPECT_EQ(text_of(error.causes()[0]), "the step broke");
    EXPECT_EQ(text_of(error.causes()[1]), "item 0 is stuck");
    EXPECT_EQ(error.kind(), ErrorKind::runtime);
  }
  EXPECT_THAT(released_, ElementsAre(0, 1));
}

TEST_F(ReleaseAll, PassesTheFailureInFlightOnWhenCleanupSucceeds) {
  add(0, -1);
  const auto failing = [&] {
    try {
      throw std::out_of_range("the step broke");
    } catch (...) {
      release_all(items_, std::current_exception());
    }
  };
  EXPECT_THROW(failing(), std::out_of_range);
  EXPECT_THAT(released_, ElementsAre(0));
}

TEST_F(ReleaseAll, ReleasesEveryItemAndReportsAFailureThoughMemoryEnds) {
  if (!kHeapIsCounted) GTEST_SKIP() << "operator new is not counted under this sanitizer";
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    items_.clear();
    released_.clear();
    released_.reserve(8);  // the notes of the test do not take part
    for (int i = 0; i < 4; ++i) add(i, i % 2 == 0 ? i : -1);
    bool threw = false;
    try {
      plan.run([&] {
        try {
          release_all(items_);
        } catch (...) {
          threw = true;
          throw;
        }
      });
    } catch (const AggregateError& error) {
      EXPECT_EQ(error.causes().size(), 2u);
    }
    EXPECT_TRUE(threw);
    EXPECT_THAT(released_, ElementsAre(0, 1, 2, 3));
  });
  EXPECT_GE(failures, 4);
}

TEST(AggregateError, DescribesEveryKindOfCause) {
  const AggregateError error(nullptr, {std::make_exception_ptr(std::bad_alloc()), std::make_exception_ptr(42)});
  EXPECT_EQ(error.kind(), ErrorKind::memory);
  EXPECT_THAT(error.what(), testing::EndsWith("; an exception of unknown type"));
}

}  // namespace
}  // namespace outrider
