#include "base/resource.h"

namespace outrider {
namespace {

struct Cause {
  ErrorKind kind = ErrorKind::runtime;
  std::string what;
  std::string hint;
};

Cause describe(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return {error.kind(), error.what(), error.hint()};
  } catch (const std::bad_alloc& error) {
    return {ErrorKind::memory, error.what(), {}};
  } catch (const std::exception& error) {
    return {ErrorKind::runtime, error.what(), {}};
  } catch (...) {
    return {ErrorKind::runtime, "an exception of unknown type", {}};
  }
}

Cause describe_all(const std::exception_ptr& execution, const std::vector<std::exception_ptr>& cleanup) {
  OUTRIDER_CHECK(execution != nullptr || !cleanup.empty(), "an aggregate of no failure");
  Cause all = describe(execution != nullptr ? execution : cleanup.front());
  std::string text = execution != nullptr ? "execution and cleanup failed: " + all.what : "cleanup failed: " + all.what;
  for (std::size_t i = execution != nullptr ? 0 : 1; i < cleanup.size(); ++i) text += "; " + describe(cleanup[i]).what;
  all.what = std::move(text);
  return all;
}

}  // namespace

AggregateError::AggregateError(std::exception_ptr execution, std::vector<std::exception_ptr> cleanup)
    : Error([&] {
        const Cause all = describe_all(execution, cleanup);
        return Error(all.kind, all.what, all.hint);
      }()),
      causes_(std::move(cleanup)) {
  if (execution != nullptr) causes_.insert(causes_.begin(), std::move(execution));
}

void Cleanup::note(std::exception_ptr failure) noexcept {
  try {
    failures_.push_back(std::move(failure));
  } catch (...) {
    ++unnamed_;
  }
}

void Cleanup::finish(std::exception_ptr execution) {
  std::vector<std::exception_ptr> failures = std::exchange(failures_, {});
  if (std::exchange(unnamed_, 0) > 0)
    failures.push_back(
        std::make_exception_ptr(Error(ErrorKind::memory, "clean-up failures were lost for want of memory")));
  if (failures.empty()) {
    if (execution != nullptr) std::rethrow_exception(std::move(execution));
    return;
  }
  if (execution == nullptr && failures.size() == 1) std::rethrow_exception(std::move(failures.front()));
  throw AggregateError(std::move(execution), std::move(failures));
}

}  // namespace outrider
