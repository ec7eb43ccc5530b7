// The logger: one line per event on stderr, filtered by level, as text or JSON lines. Process-wide (design.md allows
// two globals: the kernel table and the logger). Thread-safe. Never logs prompts or answers.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace outrider {

enum class LogLevel { debug, info, warning, error, off };
enum class LogFormat { text, json };

void set_log(LogLevel minimum, LogFormat format);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view message);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace outrider
