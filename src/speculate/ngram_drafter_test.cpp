#include "speculate/ngram_drafter.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>

namespace outrider {
namespace {

using testing::ElementsAre;
using Ids = std::vector<std::int32_t>;

Ids proposals(const NgramDrafter& drafter, std::size_t depth) {
  Ids out(depth);
  out.resize(static_cast<std::size_t>(drafter.propose(out)));
  return out;
}

// Longest ending within the limits that occurs before, and its last place, by looking everywhere.
Ids naive(const NgramLimits& limits, const Ids& text, std::size_t depth, std::int64_t& length) {
  length = 0;
  const std::int64_t size = std::ssize(text);
  for (std::int64_t n = std::min(limits.longest, size - 1); n >= limits.shortest; --n)
    for (std::int64_t end = size - 2; end >= n - 1; --end) {
      if (!std::equal(text.end() - n, text.end(), text.begin() + end + 1 - n)) continue;
      length = n;
      Ids all(text), out;
      for (std::size_t i = 0; i < depth; ++i) {
        out.push_back(all[static_cast<std::size_t>(end) + 1 + i]);
        all.push_back(out.back());
      }
      return out;
    }
  return {};
}

TEST(NgramDrafter, ProposesWhatFollowedTheLongestEnding) {
  NgramDrafter drafter({2, 4});
  drafter.append(Ids{1, 2, 3, 50, 9, 2, 3, 60, 7});
  EXPECT_EQ(drafter.match_length(), 0);
  EXPECT_TRUE(proposals(drafter, 3).empty());
  drafter.append(Ids{2, 3});  // the last occurrence is the one after 9
  EXPECT_EQ(drafter.match_length(), 2);
  EXPECT_THAT(proposals(drafter, 3), ElementsAre(60, 7, 2));
  drafter.append(Ids{70, 1, 2, 3});  // 1 2 3 is longer than 2 3
  EXPECT_EQ(drafter.match_length(), 3);
  EXPECT_THAT(proposals(drafter, 2), ElementsAre(50, 9));
}

TEST(NgramDrafter, GoesOnWithItselfPastTheEndOfTheText) {
  NgramDrafter drafter({2, 4});
  drafter.append(Ids{8, 5, 6, 7, 5, 6, 7});
  EXPECT_THAT(proposals(drafter, 7), ElementsAre(5, 6, 7, 5, 6, 7, 5));
  NgramDrafter same({1, 3});
  same.append(Ids{4, 4});
  EXPECT_THAT(proposals(same, 3), ElementsAre(4, 4, 4));
}

TEST(NgramDrafter, ForgetsAMatchThatDoesNotGoOn) {
  NgramDrafter drafter({3, 5});
  drafter.append(Ids{1, 2, 3, 4, 9, 1, 2, 3});
  EXPECT_EQ(drafter.match_length(), 3);
  drafter.append(Ids{5});
  EXPECT_EQ(drafter.match_length(), 0);
}

RC_GTEST_PROP(NgramDrafter, EveryTextGivesTheNaiveProposals, ()) {
  const auto alphabet = *rc::gen::inRange(1, 5);
  const auto text = *rc::gen::scale(3.0, rc::gen::container<Ids>(rc::gen::inRange(0, alphabet)));
  const NgramLimits limits{*rc::gen::inRange(1, 4), *rc::gen::inRange(4, 9)};
  const auto piece = static_cast<std::size_t>(*rc::gen::inRange(1, 6));
  NgramDrafter drafter(limits);
  for (std::size_t i = 0; i < text.size(); i += piece) {
    const std::size_t end = std::min(i + piece, text.size());
    drafter.append(std::span(text).subspan(i, end - i));
    const Ids so_far(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end));
    std::int64_t length = 0;
    RC_ASSERT(proposals(drafter, 5) == naive(limits, so_far, 5, length));
    RC_ASSERT(drafter.match_length() == length);
  }
}

TEST(NgramDrafter, GrowsOverManyRehashesWithTheSameAnswers) {
  std::mt19937 random(3);
  Ids text(20000);
  for (std::int32_t& id : text) id = static_cast<std::int32_t>(random() % 12);
  NgramDrafter whole({3, 8}), pieces({3, 8});
  whole.append(text);
  for (const std::int32_t id : text) pieces.append({&id, 1});
  std::int64_t length = 0;
  EXPECT_EQ(proposals(whole, 8), naive({3, 8}, text, 8, length));
  EXPECT_EQ(proposals(pieces, 8), proposals(whole, 8));
  EXPECT_EQ(whole.match_length(), length);
  EXPECT_GE(NgramDrafter::bytes_for({3, 8}, 20000), 20000u * 4 + 6 * 40000u * 4);
}

}  // namespace
}  // namespace outrider
