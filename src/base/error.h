// Errors of every room (design.md "Errors").
//  - a bug in our code: OUTRIDER_CHECK, aborts, never reachable from user input;
//  - a command that cannot go on: throw Error (fact, value, limit; then a hint), caught at four fences only;
//  - an ordinary refusal of one request: Result<T> carrying a Refusal.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace outrider {

// Exit codes of the program and kinds of Error; the numbers are the contract of the command line.
enum class ErrorKind : int {
  runtime = 1,       // failed while running
  usage = 2,         // bad flag, argument or request
  data = 3,          // model, adapter or data file missing, corrupt or unsupported
  memory = 4,        // the memory contract cannot be met
  network = 5,       // hub, download or checksum
  busy = 6,          // port taken, lock held
  interrupted = 130  // SIGINT after clean-up
};

// `what()` is one line: fact, value, limit. `hint()` is the remedy, possibly empty.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what, std::string hint = {})
      : std::runtime_error(what), kind_(kind), hint_(std::move(hint)) {}
  ErrorKind kind() const { return kind_; }
  const std::string& hint() const { return hint_; }

 private:
  ErrorKind kind_;
  std::string hint_;
};

// An ordinary refusal of one request: which field, why, and the HTTP status and code a server answers with.
struct Refusal {
  std::string message;
  std::string field;
  std::string code;
  int http_status = 400;
};

template <class T>
using Result = tl::expected<T, Refusal>;

[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& detail);

}  // namespace outrider

// Programming errors only. The optional arguments are a fmt format and its values.
#define OUTRIDER_CHECK(condition, ...)                                                         \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::outrider::check_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
