// stdout, which carries only the product (serving.md 1.1), and the progress lines on stderr.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace outrider {

// The reader of stdout has gone: the program leaves with 141.
struct StdoutClosed {};

enum class OutputForm { human, json, jsonl };

// Writes all bytes to stdout at once, unbuffered. Throws StdoutClosed on EPIPE, Error (runtime) on any other failure.
void write_stdout(std::string_view bytes);
// One JSON document on one line; bytes that are not UTF-8 become U+FFFD.
void write_json(const nlohmann::ordered_json& document);
// How many write_json() has begun: --json is one document.
int json_documents_written();

// The document of a failure: {"error":{"message","hint","code"}}.
nlohmann::ordered_json error_document(std::string_view message, std::string_view hint, std::string_view code);
std::string_view code_of(ErrorKind kind);

// "1.2 GiB", "345 kB"-like spelling of a size for people.
std::string human_bytes(std::uint64_t bytes);

// "1 token", "2 tokens"
template <class Count>
std::string counted(Count count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

enum class Colour { no, yes };
// Whether stderr takes colour and bars: a terminal, and NO_COLOR unset.
Colour stderr_colour();

// A bar on a terminal; otherwise one line per 10 % or 30 s, whichever is later.
class Progress {
 public:
  enum class Wanted { no, yes };
  Progress(std::string what, Wanted wanted);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(double fraction);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Wanted wanted_;
  Colour bar_;
  bool drawn_ = false;
  double last_fraction_ = 0;
  Clock::time_point last_time_ = Clock::now();
};

}  // namespace outrider
