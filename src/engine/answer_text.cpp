#include "engine/answer_text.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace outrider {

AnswerText::AnswerText(const Tokenizer* tokenizer, std::span<const std::string> stops, StopText stop_text)
    : stops_(stops), stop_text_(stop_text) {
  if (tokenizer != nullptr) stream_.emplace(*tokenizer, SkipSpecial::yes);
}

AnswerPiece AnswerText::push(std::int32_t id, LookForStops look) {
  if (!stream_) return {};
  return take(stream_->push(id), look);
}

AnswerPiece AnswerText::finish(LookForStops look) {
  if (!stream_) return {};
  AnswerPiece last = take(stream_->finish(), look);
  if (!last.stop) last.text += std::exchange(held_, {});
  return last;
}

AnswerPiece AnswerText::take(std::string text, LookForStops look) {
  if (look == LookForStops::no) return {std::exchange(held_, {}) + text, {}};
  const auto match = stops_.feed(text);
  held_ += match ? text.substr(0, match->end) : text;
  if (match) {
    const std::size_t length = stops_.stop(match->stop).size();
    OUTRIDER_CHECK(held_.size() >= length);
    if (stop_text_ == StopText::removed) held_.resize(held_.size() - length);
    return {std::exchange(held_, {}), match->stop};
  }
  const std::size_t keep = std::min(stops_.held_bytes(), held_.size());
  std::string released = held_.substr(0, held_.size() - keep);
  held_.erase(0, released.size());
  return {std::move(released), {}};
}

}  // namespace outrider
