#include "engine/answer_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "engine/test_words.h"

namespace outrider {
namespace {

struct Streamed {
  std::string text;
  std::vector<std::string> pieces;
  std::optional<std::size_t> stop;
};

Streamed run(const std::vector<std::int32_t>& ids, const std::vector<std::string>& stops,
             StopText stop_text = StopText::removed, std::size_t min_tokens = 0) {
  AnswerText answer(&words(), stops, stop_text);
  Streamed out;
  const auto take = [&](const AnswerPiece& piece) {
    out.text += piece.text;
    out.pieces.push_back(piece.text);
    out.stop = piece.stop;
  };
  for (std::size_t i = 0; i < ids.size() && !out.stop; ++i)
    take(answer.push(ids[i], i >= min_tokens ? LookForStops::yes : LookForStops::no));
  if (!out.stop) take(answer.finish(LookForStops::yes));
  return out;
}

TEST(AnswerText, RemovesTheStopAndWhatFollows) {
  EXPECT_EQ(run({0, 3, 2, 0}, {"bc"}).text, "aa");
  EXPECT_EQ(run({0, 3, 2, 0}, {"bc"}).stop, 0u);
  EXPECT_EQ(run({0, 3, 2, 0}, {"bc"}, StopText::included).text, "aabc");
}

TEST(AnswerText, HoldsBackWhatMayBecomeAStopAndReleasesItLater) {
  const Streamed held = run({0, 1, 0}, {"abc"});
  EXPECT_THAT(held.pieces, testing::ElementsAre("", "", "ab", "a"));
  EXPECT_EQ(held.text, "aba");
}

TEST(AnswerText, DoesNotLookForStopsBeforeMinTokens) {
  EXPECT_EQ(run({0, 0, 0, 1}, {"a"}, StopText::removed, 2).text, "aa");
  EXPECT_EQ(run({0, 0, 0, 1}, {"a"}, StopText::removed, 4).text, "aaab");
}

TEST(AnswerText, StreamsWholeCharactersAndMatchesStopsInThem) {
  EXPECT_THAT(run({0, 5, 6, 1}, {}).pieces, testing::ElementsAre("a", "", "\u00e9", "b", ""));
  EXPECT_EQ(run({0, 5, 6, 1}, {"\u00e9"}).text, "a");
}

TEST(AnswerText, ReleasesHeldTextBeforeTheRestOfAnUnfinishedCharacter) {
  EXPECT_EQ(run({0, 1, 5}, {"abc"}).text, "ab\uFFFD");
}

TEST(AnswerText, GivesTheSameTextForEverySplitIntoTokens) {
  EXPECT_TRUE(rc::check([] {
    const auto ids = *rc::gen::container<std::vector<std::int32_t>>(rc::gen::inRange(0, 5));
    const std::vector<std::string> stops = {"abca", "cc", "bcb"};
    std::vector<std::int32_t> split;
    for (const std::int32_t id : ids) {
      if (id == 3) split.insert(split.end(), {0, 1});
      if (id == 4) split.insert(split.end(), {1, 2});
      if (id < 3) split.push_back(id);
    }
    RC_ASSERT(run(ids, stops).text == run(split, stops).text);
  }));
}

TEST(AnswerText, IsEmptyWithoutATokenizer) {
  AnswerText answer(nullptr, {}, StopText::removed);
  EXPECT_EQ(answer.push(3, LookForStops::yes).text, "");
  EXPECT_EQ(answer.finish(LookForStops::yes).text, "");
}

}  // namespace
}  // namespace outrider
