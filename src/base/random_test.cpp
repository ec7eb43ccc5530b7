#include "base/random.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace outrider {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, GivesThePublishedKnownAnswers) {
  // The known-answer vectors of philox4x32-10 that the authors publish with their reference implementation.
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(DrawWord, PutsEveryFieldWhereTheContractSays) {
  // serving.md 2.3: key = low and high seed words, counter = (lane >> 2, t, choice, purpose), word lane & 3.
  const std::int64_t seed = 0x0123456789abcdef;
  const Words block = philox4x32({1234, 77, 5, 2}, {0x89abcdef, 0x01234567});
  for (std::uint32_t word = 0; word < 4; ++word)
    EXPECT_EQ(draw_word(seed, 4 * 1234 + word, 77, 5, DrawPurpose::draft), block[word]);
}

TEST(DrawWord, TakesNegativeSeedsAsTwosComplement) {
  EXPECT_EQ(draw_word(-1, 0, 0, 0, DrawPurpose::target), philox4x32({0, 0, 0, 0}, {0xffffffff, 0xffffffff})[0]);
  EXPECT_EQ(draw_word(std::numeric_limits<std::int64_t>::min(), 3, 0, 0, DrawPurpose::target),
            philox4x32({0, 0, 0, 0}, {0, 0x80000000})[3]);
}

TEST(DrawWord, DiffersInEveryField) {
  const std::set<std::uint32_t> words = {
      draw_word(1, 1, 1, 1, DrawPurpose::target),   draw_word(2, 1, 1, 1, DrawPurpose::target),
      draw_word(1, 2, 1, 1, DrawPurpose::target),   draw_word(1, 1, 2, 1, DrawPurpose::target),
      draw_word(1, 1, 1, 2, DrawPurpose::target),   draw_word(1, 1, 1, 1, DrawPurpose::xtc_gate),
      draw_word(1, 1, 1, 1, DrawPurpose::draft),    draw_word(1, 1, 1, 1, DrawPurpose::acceptance),
      draw_word(1, 1, 1, 1, DrawPurpose::residual), draw_word(1ll << 32, 1, 1, 1, DrawPurpose::target)};
  EXPECT_EQ(words.size(), 10u);
}

TEST(DrawUniform, IsTheCentreOfTheWordsInterval) {
  for (std::uint32_t lane = 0; lane < 1000; ++lane) {
    const double word = draw_word(42, lane, 9, 0, DrawPurpose::target);
    const double u = draw_uniform(42, lane, 9, 0, DrawPurpose::target);
    EXPECT_EQ(u, (word + 0.5) / 4294967296.0);
    EXPECT_GT(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
}

TEST(DrawUniform, HasTheMeanAndVarianceOfAUniform) {
  double sum = 0;
  double squares = 0;
  constexpr int kDraws = 100000;
  for (std::uint32_t t = 0; t < kDraws; ++t) {
    const double u = draw_uniform(7, 11, t, 0, DrawPurpose::acceptance);
    sum += u;
    squares += u * u;
  }
  const double mean = sum / kDraws;
  EXPECT_NEAR(mean, 0.5, 0.005);  // 5 standard deviations
  EXPECT_NEAR(squares / kDraws - mean * mean, 1.0 / 12, 0.002);
}

TEST(RandomSeed, Has53BitsAndDoesNotRepeat) {
  std::set<std::int64_t> seeds;
  std::int64_t all = 0;
  for (int i = 0; i < 64; ++i) {
    const std::int64_t seed = random_seed();
    EXPECT_GE(seed, 0);
    EXPECT_LT(seed, std::int64_t{1} << 53);
    seeds.insert(seed);
    all |= seed;
  }
  EXPECT_EQ(seeds.size(), 64u);
  EXPECT_EQ(all, (std::int64_t{1} << 53) - 1);  // every bit is used (fails once in 3e17 runs)
}

}  // namespace
}  // namespace outrider
