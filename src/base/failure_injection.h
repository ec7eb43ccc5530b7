// Failure injection for tests (runtime.md 1.6): the n-th fallible point that a thread passes throws. Code marks a point
// that can fail with fallible_point("name"); AlignedBuffer does, and base/counted_new.h makes every operator new of a
// test program one. When nothing is armed a point costs one thread-local load.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/error.h"

// ThreadSanitizer has an operator new of its own that base/counted_new.h cannot replace.
#if defined(__SANITIZE_THREAD__)
#define OUTRIDER_COUNTED_NEW 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OUTRIDER_COUNTED_NEW 0
#endif
#endif
#ifndef OUTRIDER_COUNTED_NEW
#define OUTRIDER_COUNTED_NEW 1
#endif

namespace outrider {

// Whether base/counted_new.h counts in this build; tests that need it skip themselves where it does not.
inline constexpr bool kHeapIsCounted = OUTRIDER_COUNTED_NEW != 0;

// What a marked point throws when its turn comes (operator new throws std::bad_alloc instead).
class InjectedFailure : public Error {
 public:
  explicit InjectedFailure(const char* point)
      : Error(ErrorKind::memory, fmt::format("injected failure at {}", point), "this is a test") {}
};

struct FailureCountdown {
  std::int64_t left = 0;        // points until the failure; <= 0 after it: nothing fails any more
  std::int64_t passed = 0;      // points met while armed
  const char* fired = nullptr;  // name of the point that failed
  const char* only = nullptr;   // points of this name alone count; null: all
  // True for the one point that must fail.
  bool next(const char* point) noexcept {
    if (only != nullptr && std::strcmp(only, point) != 0) return false;
    ++passed;
    if (--left != 0) return false;
    fired = point;
    return true;
  }
};

inline constinit thread_local FailureCountdown* armed_failure = nullptr;

inline void fallible_point(const char* name) {
  if (armed_failure != nullptr && armed_failure->next(name)) [[unlikely]]
    throw InjectedFailure(name);
}

// One attempt of an operation with a failure at its n-th point.
class FailurePlan {
 public:
  explicit FailurePlan(std::int64_t nth) { countdown_.left = nth; }

  // Runs `operation` armed. True: it finished and no failure was due. False: the failure was thrown and reached us. An
  // operation that swallows the failure, or fails by itself, is reported by an exception.
  template <class Operation>
  bool run(Operation&& operation) {
    try {
      const Armed armed(countdown_);
      std::forward<Operation>(operation)();
    } catch (...) {
      if (countdown_.fired == nullptr) throw;
      return false;
    }
    if (countdown_.fired != nullptr)
      throw std::logic_error(fmt::format("the failure at {} did not surface", countdown_.fired));
    return true;
  }
  bool fired() const { return countdown_.fired != nullptr; }
  const char* point() const { return countdown_.fired; }

 private:
  struct Armed {
    explicit Armed(FailureCountdown& countdown) { armed_failure = &countdown; }
    ~Armed() { armed_failure = nullptr; }
  };
  FailureCountdown countdown_;
};

// Calls attempt(plan) with a failure at point 1, 2, 3, ... until an attempt meets none; returns how many failed. The
// attempt prepares its objects, calls plan.run(operation) and checks what is left.
template <class Attempt>
std::int64_t for_every_failure(Attempt&& attempt) {
  for (std::int64_t nth = 1;; ++nth) {
    FailurePlan plan(nth);
    attempt(plan);
    if (!plan.fired()) return nth - 1;
  }
}

}  // namespace outrider
