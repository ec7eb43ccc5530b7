// Incremental UTF-8 output: ids in, complete characters out (design.md `text/`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace outrider {

// Decodes one choice's tokens as they come. The concatenation of everything returned by push() and finish() equals
// Tokenizer::decode of all ids; no call returns a part of a UTF-8 character. Invalid bytes become U+FFFD exactly where
// decode() puts them. Borrows the tokenizer, which must outlive it. Time per id does not grow with the text.
//
// What is held back: byte-level tokenizers, at most 3 bytes of an unfinished character; byte-fallback tokenizers
// (sentencepiece), a run of byte tokens, because decode() replaces the whole run if any part of it is invalid.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, SkipSpecial skip_special);
  // Error (usage) if the id is out of range; the stream is then unchanged.
  std::string push(std::int32_t id);
  std::string finish();

 private:
  std::string take_byte_run();
  std::string stripped(std::string text);
  std::string beside_anchor(std::int32_t id);

  const Tokenizer* tokenizer_;
  SkipSpecial skip_special_;
  std::string pending_;       // bytes whose text is not decided yet
  std::string strip_;         // byte fallback: the character dropped at the start of the whole text ...
  std::size_t strips_left_;   // ... and how often it may still be dropped
  std::int32_t anchor_ = -1;  // other decoders: the id before, whose presence makes the next one not the first
};

}  // namespace outrider
