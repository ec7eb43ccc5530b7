// The text of one answer: token ids in, text out, stop strings found and held back (serving.md 2.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/stops.h"
#include "text/text_stream.h"

namespace outrider {

enum class LookForStops : std::uint8_t { no, yes };
enum class StopText : std::uint8_t { removed, included };

// What pushing a token released, and the stop string it completed.
struct AnswerPiece {
  std::string text;
  std::optional<std::size_t> stop;  // index into the stop strings
};

// Borrows the tokenizer; null: an engine of raw ids, whose text is always empty.
class AnswerText {
 public:
  AnswerText(const Tokenizer* tokenizer, std::span<const std::string> stops, StopText stop_text);

  // After a piece with a stop nothing more may be pushed.
  AnswerPiece push(std::int32_t id, LookForStops look);
  // The end of the answer: what was held back, and the rest of an unfinished character.
  AnswerPiece finish(LookForStops look);

 private:
  AnswerPiece take(std::string text, LookForStops look);

  std::optional<TextStream> stream_;
  StopMatcher stops_;
  StopText stop_text_;
  std::string held_;  // decoded, not released: may still become a stop string
};

}  // namespace outrider
