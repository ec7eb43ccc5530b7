// How this room words the faults of files: "<file>: tensor 'x': <fact, value, limit>", with the remedy of most faults
// where none is given. Names from a file are escaped and cut, so that a hostile file cannot write into a terminal or a
// log.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace outrider {

// 'name' with control bytes, quotes and bytes above 0x7e as \xNN, cut after 96 bytes.
inline std::string in_quotes(std::string_view name) {
  constexpr std::size_t kShown = 96;
  std::string out = "'";
  for (const char c : name.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e || c == '\'' || c == '\\')
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + (name.size() > kShown ? "...'" : "'");
}

// "[3, 4]"
inline std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

inline constexpr const char* kGetAnew =
    "the file is damaged, incomplete or changed by hand: download or convert it anew";
inline constexpr const char* kTakeAnother = "take a model or a copy without it";

inline Error file_error(std::string_view file, std::string_view fact, std::string hint = kGetAnew) {
  return Error(ErrorKind::data, fmt::format("{}: {}", file, fact), std::move(hint));
}

inline Error tensor_error(std::string_view file, std::string_view tensor, std::string_view fact,
                          std::string hint = kGetAnew) {
  return Error(ErrorKind::data, fmt::format("{}: tensor {}: {}", file, in_quotes(tensor), fact), std::move(hint));
}

}  // namespace outrider
