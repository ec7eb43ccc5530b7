// UTF-8 one character at a time (Unicode 15, table 3-7).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

enum class Utf8Kind {
  valid,       // a whole character
  invalid,     // a maximal part of no character: one U+FFFD
  incomplete,  // the text ends inside what may become a character
};

struct Utf8Step {
  Utf8Kind kind;
  std::size_t size;  // bytes, > 0
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// What starts at text[0]; text is not empty.
Utf8Step utf8_step(std::string_view text);

// Offset of the first byte that is not part of a valid character; npos if the text is UTF-8.
std::size_t utf8_fault(std::string_view text);

// Moves all decided text out of `bytes`, invalid parts as U+FFFD; leaves at most 3 bytes of an incomplete character.
std::string take_utf8(std::string& bytes);

}  // namespace outrider
