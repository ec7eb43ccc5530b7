#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>

namespace outrider {
namespace {

std::atomic<LogLevel> minimum_level{LogLevel::info};
std::atomic<LogFormat> line_format{LogFormat::text};
std::mutex write_mutex;

constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};

// Bytes of the UTF-8 sequence that starts `text`: 1 to 4, or 0 where it is none (RFC 3629: no overlong forms, no
// surrogates, nothing above U+10FFFF).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

// The text as the inside of a JSON string. A byte that is not UTF-8 becomes an escape of its value, so that the line
// always parses.
std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0 || byte < 0x20)
      out += fmt::format("\\u{:04x}", byte);
    else if (byte == '"' || byte == '\\')
      out += {'\\', text[0]};
    else
      out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace

void set_log(LogLevel minimum, LogFormat format) {
  minimum_level = minimum;
  line_format = format;
}

bool log_enabled(LogLevel level) { return level >= minimum_level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view message) {
  const char* name = kNames[static_cast<int>(level)];
  const std::string line = line_format.load() == LogFormat::json
                               ? fmt::format("{{\"level\":\"{}\",\"message\":\"{}\"}}\n", name, escaped(message))
                               : fmt::format("{}: {}\n", name, message);
  const std::lock_guard lock(write_mutex);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace outrider
