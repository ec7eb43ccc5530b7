// Stop strings: an automaton fed byte by byte, so that token boundaries and chunking cannot matter (serving.md 2.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

// All stop strings of one request, each followed by its prefix function [Knuth, Morris, Pratt 1977]: a few bytes per
// byte of stop string, however hostile they are. The match that ends first wins; of several that end at the same byte,
// the longest. Not thread-safe.
class StopMatcher {
 public:
  struct Match {
    std::size_t end = 0;   // bytes of this call's input up to and with the match's last byte
    std::size_t stop = 0;  // index of the stop string
  };

  // No empty strings (checked). Without stops nothing ever matches and nothing is held.
  explicit StopMatcher(std::span<const std::string> stops);

  // Feeds bytes until the first match, after which the matcher must not be fed again.
  std::optional<Match> feed(std::string_view bytes);
  // Length of the longest end of the bytes so far that may still become a stop string.
  std::size_t held_bytes() const;
  const std::string& stop(std::size_t index) const { return followed_[index].text; }

 private:
  struct Followed {
    std::string text;
    std::vector<std::uint32_t> border;  // [i]: longest proper prefix of text[0..i] that is also its end
    std::uint32_t matched = 0;          // bytes of `text` that the input ends with
  };
  static void follow(Followed& stop, char byte);

  std::vector<Followed> followed_;
};

}  // namespace outrider
