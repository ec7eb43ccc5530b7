#include "engine/stops.h"

#include <algorithm>

#include "base/error.h"

namespace outrider {

StopMatcher::StopMatcher(std::span<const std::string> stops) {
  for (const std::string& text : stops) {
    OUTRIDER_CHECK(!text.empty());
    Followed stop{text, std::vector<std::uint32_t>(text.size()), 0};
    for (std::size_t i = 1; i < text.size(); ++i) {
      std::uint32_t border = stop.border[i - 1];
      while (border > 0 && text[border] != text[i]) border = stop.border[border - 1];
      stop.border[i] = border + static_cast<std::uint32_t>(text[border] == text[i]);
    }
    followed_.push_back(std::move(stop));
  }
}

void StopMatcher::follow(Followed& stop, char byte) {
  while (stop.matched > 0 && stop.text[stop.matched] != byte) stop.matched = stop.border[stop.matched - 1];
  if (stop.text[stop.matched] == byte) ++stop.matched;
}

std::optional<StopMatcher::Match> StopMatcher::feed(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::optional<Match> longest;
    for (std::size_t s = 0; s < followed_.size(); ++s) {
      Followed& stop = followed_[s];
      follow(stop, bytes[i]);
      if (stop.matched == stop.text.size() && (!longest || stop.text.size() > followed_[longest->stop].text.size()))
        longest = Match{i + 1, s};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

std::size_t StopMatcher::held_bytes() const {
  std::size_t held = 0;
  for (const Followed& stop : followed_) held = std::max<std::size_t>(held, stop.matched);
  return held;
}

}  // namespace outrider
