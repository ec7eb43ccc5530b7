#include "engine/stops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace outrider {
namespace {

struct Found {
  std::size_t end = 0;
  std::size_t stop = 0;
  bool operator==(const Found&) const = default;
};

std::optional<Found> find_in_pieces(const std::vector<std::string>& stops, const std::string& text, std::size_t piece) {
  StopMatcher matcher(stops);
  for (std::size_t at = 0; at < text.size(); at += piece)
    if (const auto match = matcher.feed(std::string_view(text).substr(at, piece)))
      return Found{at + match->end, match->stop};
  return std::nullopt;
}

// serving.md 2.4, word for word: the match that ends first, the longest at equal end.
std::optional<Found> find_naively(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<Found> best;
    for (std::size_t i = 0; i < stops.size(); ++i)
      if (text.substr(0, end).ends_with(stops[i]) && (!best || stops[i].size() > stops[best->stop].size()))
        best = Found{end, i};
    if (best) return best;
  }
  return std::nullopt;
}

TEST(StopMatcher, TheMatchThatEndsFirstWinsAndTheLongestAtEqualEnd) {
  EXPECT_EQ(find_in_pieces({"abcd", "bc"}, "xabcd", 1), (Found{4, 1}));
  EXPECT_EQ(find_in_pieces({"c", "abc", "bc"}, "xabc", 1), (Found{4, 1}));
  EXPECT_EQ(find_in_pieces({"aab"}, "aaab", 2), (Found{4, 0}));
  EXPECT_EQ(find_in_pieces({}, "anything", 3), std::nullopt);
}

TEST(StopMatcher, HoldsTheLongestEndThatMayBecomeAStop) {
  const std::vector<std::string> stops = {"abab!", "ba?"};
  StopMatcher matcher(stops);
  matcher.feed("xab");
  EXPECT_EQ(matcher.held_bytes(), 2u);
  matcher.feed("ab");
  EXPECT_EQ(matcher.held_bytes(), 4u);
  matcher.feed("a");
  EXPECT_EQ(matcher.held_bytes(), 3u);  // "aba" of the first
  matcher.feed("z");
  EXPECT_EQ(matcher.held_bytes(), 0u);
}

TEST(StopMatcher, AgreesWithTheDefinitionForEveryCutOfTheText) {
  EXPECT_TRUE(rc::check([] {
    const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b'));
    auto stops = *rc::gen::container<std::vector<std::string>>(
        rc::gen::resize(6, rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::element('a', 'b')))));
    if (stops.size() > 5) stops.resize(5);
    const std::string text = *letters;
    for (const std::size_t piece : {1u, 2u, 3u, 100u})
      RC_ASSERT(find_in_pieces(stops, text, piece) == find_naively(stops, text));
  }));
}

}  // namespace
}  // namespace outrider
