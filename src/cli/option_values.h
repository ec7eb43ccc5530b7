// Options whose values are read exactly as written: whole numbers without clamping or octal, repeatable text without
// lists in brackets. Faults are CLI::ValidationError and name the value and what is allowed.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace outrider {

struct WholeRange {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};
inline constexpr WholeRange kFromZero{0}, kFromOne{1};

CLI::Option* add_whole_into(CLI::App& app, const std::string& names, std::function<void(std::int64_t)> assign,
                            const std::string& help, WholeRange range);
// T: an integer that holds all of `range`, or a std::optional<std::int64_t>.
template <class T>
CLI::Option* add_whole(CLI::App& app, const std::string& names, T& value, const std::string& help, WholeRange range) {
  return add_whole_into(app, names, [&value](std::int64_t given) { value = static_cast<T>(given); }, help, range);
}

CLI::Option* add_decimal_into(CLI::App& app, const std::string& names, std::function<void(double)> assign,
                              const std::string& help);
template <class T>
CLI::Option* add_decimal(CLI::App& app, const std::string& names, T& value, const std::string& help) {
  return add_decimal_into(app, names, [&value](double given) { value = given; }, help);
}

// One text per flag, whatever its characters; the flag may be repeated.
CLI::Option* add_texts(CLI::App& app, const std::string& names, std::vector<std::string>& values,
                       const std::string& help);

}  // namespace outrider
