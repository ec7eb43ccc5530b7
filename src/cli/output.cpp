#include "cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace outrider {

void write_stdout(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EPIPE) {
      throw StdoutClosed{};
    } else if (errno != EINTR) {
      throw Error(ErrorKind::runtime, fmt::format("cannot write to stdout: {}", std::strerror(errno)),
                  "check where the output goes, and the room there");
    }
  }
}

namespace {
int documents_written = 0;
}

int json_documents_written() { return documents_written; }

void write_json(const nlohmann::ordered_json& document) {
  ++documents_written;
  write_stdout(document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

nlohmann::ordered_json error_document(std::string_view message, std::string_view hint, std::string_view code) {
  return {{"error", {{"message", message}, {"hint", hint}, {"code", code}}}};
}

std::string_view code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::runtime:
      return "runtime";
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::data:
      return "data";
    case ErrorKind::memory:
      return "memory_contract";
    case ErrorKind::network:
      return "network";
    case ErrorKind::busy:
      return "busy";
    case ErrorKind::interrupted:
      return "interrupted";
  }
  return "runtime";
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1000 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value,
                                 value < 10    ? 2
                                 : value < 100 ? 1
                                               : 0,
                                 kUnits[unit]);
}

Colour stderr_colour() {
  const char* refused = std::getenv("NO_COLOR");
  return isatty(STDERR_FILENO) == 1 && (refused == nullptr || *refused == '\0') ? Colour::yes : Colour::no;
}

Progress::Progress(std::string what, Wanted wanted) : what_(std::move(what)), wanted_(wanted), bar_(stderr_colour()) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(double fraction) {
  if (wanted_ == Wanted::no) return;
  const Clock::time_point now = Clock::now();
  if (bar_ == Colour::yes) {
    if (drawn_ && now - last_time_ < std::chrono::milliseconds(100)) return;
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(fraction * kWidth);
    std::fprintf(stderr, "\r%s [%s%s] %3d %%", what_.c_str(),
                 std::string(static_cast<std::size_t>(filled), '#').c_str(),
                 std::string(static_cast<std::size_t>(kWidth - filled), ' ').c_str(), static_cast<int>(fraction * 100));
    drawn_ = true;
  } else {
    if (fraction - last_fraction_ < 0.1 || now - last_time_ < std::chrono::seconds(30)) return;
    std::fprintf(stderr, "%s: %d %%\n", what_.c_str(), static_cast<int>(fraction * 100));
    last_fraction_ = fraction;
  }
  last_time_ = now;
}

}  // namespace outrider
