// Resources that are released exactly once and whose clean-up never hides a failure (runtime.md 1.1 and 1.4).
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace outrider {

// Several failures as one. With an execution failure what() begins "execution and cleanup failed", else "cleanup
// failed"; every cause's own text follows. Kind and hint are those of the first cause.
class AggregateError : public Error {
 public:
  // `execution` may be null; at least one failure in all.
  AggregateError(std::exception_ptr execution, std::vector<std::exception_ptr> cleanup);
  // The execution failure first if there is one, then the clean-up failures in the order they happened.
  const std::vector<std::exception_ptr>& causes() const { return causes_; }

 private:
  std::vector<std::exception_ptr> causes_;
};

// Runs clean-up steps, each of which may throw, and keeps the failures.
class Cleanup {
 public:
  template <class Step>
  void attempt(Step&& step) noexcept {
    try {
      std::forward<Step>(step)();
    } catch (...) {
      note(std::current_exception());
    }
  }
  // Ends the clean-up. No failure at all: returns. One failure in all (the execution's or one step's): throws it as it
  // is. More: throws them as one AggregateError.
  void finish(std::exception_ptr execution = nullptr);

 private:
  void note(std::exception_ptr failure) noexcept;
  std::vector<std::exception_ptr> failures_;
  int unnamed_ = 0;  // failures that there was no memory to keep
};

// Closes every item, also when an earlier close() throws, then reports as Cleanup::finish does. Called from a handler
// as release_all(items, std::current_exception()); it then always throws.
template <class Items>
void release_all(Items&& items, std::exception_ptr execution = nullptr) {
  Cleanup cleanup;
  for (auto& item : items) cleanup.attempt([&item] { item.close(); });
  cleanup.finish(std::move(execution));
}

// Destroying the value is its release.
struct DestroyOnly {
  template <class T>
  void operator()(T&) const noexcept {}
};

// Owns a value until it is transferred or closed. `Release` is called once with the value before it is destroyed and
// may throw; a failing release in the destructor, where nobody can be told, is logged. Move-only.
template <class T, class Release = DestroyOnly>
class OwnedResource {
 public:
  explicit OwnedResource(T value, Release release = {}) : value_(std::move(value)), release_(std::move(release)) {}
  OwnedResource(OwnedResource&& other) noexcept(std::is_nothrow_move_constructible_v<T>)
      : value_(std::move(other.value_)), release_(std::move(other.release_)) {
    other.value_.reset();
  }
  OwnedResource& operator=(OwnedResource&&) = delete;
  ~OwnedResource() {
    try {
      close();
    } catch (const std::exception& error) {
      log(LogLevel::error, "a resource was not released: {}", error.what());
    } catch (...) {
      log(LogLevel::error, "a resource was not released");
    }
  }

  bool owns() const { return value_.has_value(); }
  // The value, still owned here. Error (runtime) "resource ownership has ended" after transfer() or close().
  T& borrow() { return held(); }
  // The value, owned by the caller from now on. The same Error when there is none.
  T transfer() {
    T value = std::move(held());
    value_.reset();
    return value;
  }
  // Releases the value. Ownership ends even if the release throws; closing again does nothing.
  void close() {
    if (!value_) return;
    std::optional<T> ending = std::move(value_);
    value_.reset();
    release_(*ending);
  }

 private:
  T& held() {
    if (!value_) throw Error(ErrorKind::runtime, "resource ownership has ended");
    return *value_;
  }
  std::optional<T> value_;
  [[no_unique_address]] Release release_;
};

}  // namespace outrider
