// Values in one text, separated by commas: "0,2048,8192".
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace outrider {

// The number that is all of `text`; nothing for other texts and outside of [least, most].
template <class T>
std::optional<T> number_within(std::string_view text, T least, T most) {
  T value{};
  const auto [rest, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || rest != text.data() + text.size() || !(value >= least && value <= most)) return {};
  return value;
}

// The pieces of `text`, each read by `read`, which says nothing for a piece that is no `what`: then Error (usage).
template <class T, class Read>
std::vector<T> comma_list(std::string_view flag, std::string_view text, std::string_view what, std::string hint,
                          const Read& read) {
  std::vector<T> values;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view piece = text.substr(begin, end - begin);
    const std::optional<T> value = read(piece);
    if (!value)
      throw Error(ErrorKind::usage, fmt::format("{} names \"{}\", which is no {}", flag, piece, what), std::move(hint));
    values.push_back(*value);
    begin = end + 1;
  }
  return values;
}

}  // namespace outrider
