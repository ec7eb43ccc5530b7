#include "base/state_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/counted_new.h"

namespace outrider {
namespace {

using testing::ElementsAre;

// An owner of one string; its change holds the replacement before commit and the superseded string after it.
class Owner {
 public:
  explicit Owner(std::string value, std::vector<std::string>* journal = nullptr)
      : value_(std::move(value)), journal_(journal) {}
  const std::string& value() const { return value_; }

  PreparedStateChange prepare(std::string replacement) {
    fallible_point("Owner::prepare");
    return PreparedStateChange(std::make_unique<Change>(*this, std::move(replacement)));
  }

 private:
  struct Change : StateChange {
    Change(Owner& owner, std::string value) : owner(owner), held(std::move(value)) {}
    void commit() noexcept override {
      note("commit ", held);
      owner.value_.swap(held);
    }
    void dispose() noexcept override {
      note("dispose ", held);
      held = {};
    }
    // Without a journal it allocates nothing, as the contract wants.
    void note(const char* what, const std::string& whom) {
      if (owner.journal_ != nullptr) owner.journal_->push_back(what + whom);
    }
    Owner& owner;
    std::string held;
  };
  std::string value_;
  std::vector<std::string>* journal_;
};

TEST(PreparedStateChange, ShowsNothingBeforeCommit) {
  Owner owner("old");
  PreparedStateChange change = owner.prepare("new");
  EXPECT_EQ(owner.value(), "old");
  change.commit();
  EXPECT_EQ(owner.value(), "new");
}

TEST(PreparedStateChange, DisposesTheReplacementBeforeAndTheSupersededAfterCommitOnce) {
  std::vector<std::string> journal;
  Owner owner("old", &journal);
  PreparedStateChange unused = owner.prepare("never");
  unused.dispose();
  unused.dispose();
  PreparedStateChange used = owner.prepare("new");
  used.commit();
  used.dispose();
  used.dispose();
  EXPECT_THAT(journal, ElementsAre("dispose never", "commit new", "dispose old"));
  EXPECT_EQ(owner.value(), "new");
}

TEST(PreparedStateChange, DisposesItselfAndWhatIsAssignedOver) {
  std::vector<std::string> journal;
  Owner owner("old", &journal);
  {
    PreparedStateChange change = owner.prepare("a");
    change = owner.prepare("b");
    EXPECT_THAT(journal, ElementsAre("dispose a"));
    change.commit();
    PreparedStateChange moved = std::move(change);
  }
  EXPECT_THAT(journal, ElementsAre("dispose a", "commit b", "dispose old"));
}

TEST(PreparedStateChangeDeath, CommitsOnceAndNotAfterDispose) {
  Owner owner("old");
  PreparedStateChange twice = owner.prepare("new");
  twice.commit();
  EXPECT_DEATH(twice.commit(), "was committed");
  PreparedStateChange disposed = owner.prepare("new");
  disposed.dispose();
  EXPECT_DEATH(disposed.commit(), "was disposed");
}

TEST(ApplyStateChanges, PreparesAllThenCommitsAllThenDisposesAll) {
  std::vector<std::string> journal;
  Owner a("a0", &journal);
  Owner b("b0", &journal);
  const StatePreparer preparers[] = {[&] {
                                       journal.emplace_back("prepare a");
                                       return a.prepare("a1");
                                     },
                                     [&] {
                                       journal.emplace_back("prepare b");
                                       return b.prepare("b1");
                                     }};
  apply_state_changes(preparers);
  EXPECT_THAT(journal, ElementsAre("prepare a", "prepare b", "commit a1", "commit b1", "dispose a0", "dispose b0"));
}

TEST(ApplyStateChanges, DisposesWhatWasBuiltWhenOnePrepareThrows) {
  std::vector<std::string> journal;
  Owner a("a0", &journal);
  Owner b("b0", &journal);
  bool third = false;
  const StatePreparer preparers[] = {[&] { return a.prepare("a1"); },
                                     [&]() -> PreparedStateChange { throw Error(ErrorKind::data, "b refuses"); },
                                     [&] {
                                       third = true;
                                       return b.prepare("b1");
                                     }};
  EXPECT_THROW(apply_state_changes(preparers), Error);
  EXPECT_THAT(journal, ElementsAre("dispose a1"));
  EXPECT_EQ(a.value(), "a0");
  EXPECT_EQ(b.value(), "b0");
  EXPECT_FALSE(third);
}

TEST(ApplyStateChanges, DoesNothingForNoChanges) { apply_state_changes({}); }

TEST(ApplyStateChanges, LeavesEveryOwnerAtAFailureOfAnyPoint) {
  if (!kHeapIsCounted) GTEST_SKIP() << "operator new is not counted under this sanitizer";
  const std::string long_name(100, 'x');  // beyond what a string keeps inside itself
  const std::int64_t failures = for_every_failure([&](FailurePlan& plan) {
    Owner a("a" + long_name);
    Owner b("b" + long_name);
    const StatePreparer preparers[] = {[&] { return a.prepare("A" + long_name); },
                                       [&] { return b.prepare("B" + long_name); }};
    const std::int64_t live = live_heap_blocks();
    const bool done = plan.run([&] { apply_state_changes(preparers); });
    EXPECT_EQ(live_heap_blocks(), live);
    EXPECT_EQ(a.value()[0], done ? 'A' : 'a');
    EXPECT_EQ(b.value()[0], done ? 'B' : 'b');
  });
  EXPECT_EQ(failures, 1 + 2 * 3);  // the list; twice the string, the call, the change
}

}  // namespace
}  // namespace outrider
