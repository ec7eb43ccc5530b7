// logp_tiles and argmax (numerics.md section 7).
#include "kernels/math.h"
#include "kernels/vector_test_data.h"

namespace outrider {
namespace {

using namespace vector_test;  // NOLINT: the data of these tests

class VectorVocabulary : public VectorTable {};
INSTANTIATE_TEST_SUITE_P(Isas, VectorVocabulary, kVectorIsas, isa_name);

const KernelTable& portable() { return portable_table_under_test(); }

struct Tiles {
  std::vector<float> max, sum;
};

Tiles tiles_of(const KernelTable& table, const std::vector<float>& z) {
  const std::size_t tiles = (z.size() + 255) / 256;
  Tiles out{std::vector<float>(tiles), std::vector<float>(tiles)};
  table.logp_tiles(z.data(), static_cast<std::int64_t>(z.size()), {0, static_cast<std::int64_t>(tiles)}, out.max.data(),
                   out.sum.data());
  return out;
}

TEST(LogpTiles, MatchADoubleReference) {
  Random random(1);
  for (std::size_t n : {1U, 15U, 16U, 17U, 255U, 256U, 257U, 1000U, 49152U}) {
    const std::vector<float> z = bells(n, random, 8.0F);
    const Tiles out = tiles_of(portable(), z);
    for (std::size_t t = 0; t < out.max.size(); ++t) {
      const std::size_t begin = t * 256, end = std::min(begin + 256, n);
      const float m = *std::max_element(z.begin() + begin, z.begin() + end);
      double sum = 0.0;
      for (std::size_t i = begin; i < end; ++i) sum += std::exp(static_cast<double>(z[i]) - m);
      EXPECT_EQ(out.max[t], m);
      EXPECT_NEAR(out.sum[t], sum, 1e-6 * sum);
    }
  }
}

TEST(LogpTiles, AddSixteenLanesByTheTree) {
  Random random(2);
  const std::vector<float> z = bells(35, random);
  const Tiles out = tiles_of(portable(), z);
  float lane[16] = {};
  for (int i = 0; i < 35; ++i) lane[i % 16] += exp32(z[i] - out.max[0]);
  for (int step : {8, 4, 2, 1}) {
    for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
  }
  EXPECT_EQ(bits(out.sum[0]), bits(lane[0]));
}

TEST(LogpTiles, SayZeroForATileOfMinusInfinities) {
  std::vector<float> z(300, -kInfinity);
  const Tiles all = tiles_of(portable(), z);
  EXPECT_EQ(all.max[0], -kInfinity);
  EXPECT_EQ(bits(all.sum[0]), 0U);
  EXPECT_EQ(bits(all.sum[1]), 0U);
  z[257] = 3.0F;
  EXPECT_EQ(tiles_of(portable(), z).sum[1], 1.0F);
}

TEST(LogpTiles, DoNotHideANaN) {
  std::vector<float> z(256, kNaN);
  EXPECT_TRUE(std::isnan(tiles_of(portable(), z).sum[0]));
  z.assign(256, 1.0F);
  z[200] = kNaN;
  EXPECT_TRUE(std::isnan(tiles_of(portable(), z).sum[0]));
  EXPECT_EQ(tiles_of(portable(), z).max[0], 1.0F);
}

TEST(LogpTiles, WriteOnlyTheTilesAskedFor) {
  Random random(3);
  const std::vector<float> z = bells(1000, random);
  float max[4] = {9, 9, 9, 9}, sum[4] = {9, 9, 9, 9};
  portable().logp_tiles(z.data(), 1000, {1, 3}, max, sum);
  const Tiles all = tiles_of(portable(), z);
  EXPECT_EQ(max[0], 9.0F);
  EXPECT_EQ(sum[3], 9.0F);
  EXPECT_EQ(max[1], all.max[1]);
  EXPECT_EQ(sum[2], all.sum[2]);
}

TEST(Argmax, TakesTheLowestIndexOfTheLargest) {
  bool has_nan = true;
  const float z[] = {1.0F, 5.0F, 5.0F, -1.0F};
  EXPECT_EQ(portable().argmax(z, 4, &has_nan), 1);
  EXPECT_FALSE(has_nan);
  const float zeros[] = {-1.0F, -0.0F, 0.0F};
  EXPECT_EQ(portable().argmax(zeros, 3, &has_nan), 1) << "-0 and +0 are equal";
  const float faulty[] = {kNaN, -kInfinity, kNaN, -kInfinity};
  EXPECT_EQ(portable().argmax(faulty, 4, &has_nan), 1);
  EXPECT_TRUE(has_nan);
  const float nans[] = {kNaN, kNaN};
  EXPECT_EQ(portable().argmax(nans, 2, &has_nan), 0);
  EXPECT_TRUE(has_nan);
}

TEST(VectorVocabularyBytes, AreThoseOfTheFirstVersion) {
  Random random(4);
  const Tiles out = tiles_of(portable(), bells(2000, random, 6.0F));
  EXPECT_EQ(hash_of(out.max), 0x30bec8a903ea44e7U);
  EXPECT_EQ(hash_of(out.sum), 0x604c8a47cae86f03U);
}

TEST_P(VectorVocabulary, GivesThePortableTiles) {
  Random random(5);
  for (std::size_t n :
       {1U, 2U, 7U, 8U, 9U, 15U, 16U, 17U, 31U, 33U, 250U, 255U, 256U, 257U, 264U, 272U, 511U, 1000U, 3001U}) {
    for (Kind kind : kKinds) {
      for (float factor : {1.0F, 30.0F}) {
        std::vector<float> z = vector_of(kind, n, random);
        for (float& v : z) v *= factor;
        for (std::size_t i = 0; i < n; i += 1 + random.below(40)) z[i] = -kInfinity;
        const Tiles expected = tiles_of(portable(), z), got = tiles_of(table(), z);
        ASSERT_TRUE(same_bytes(expected.max, got.max)) << n << " kind " << static_cast<int>(kind);
        ASSERT_TRUE(same_bytes(expected.sum, got.sum)) << n << " kind " << static_cast<int>(kind);
      }
    }
  }
}

TEST_P(VectorVocabulary, GivesThePortableArgmax) {
  Random random(6);
  for (std::size_t n : kLengths) {
    for (Kind kind : kKinds) {
      for (int repeat = 0; repeat < 4; ++repeat) {
        std::vector<float> z = vector_of(kind, n, random);
        if (repeat == 1) z[random.below(static_cast<std::uint32_t>(n))] = kNaN;
        if (repeat == 2) z.assign(n, -kInfinity);
        if (repeat == 3) z[random.below(static_cast<std::uint32_t>(n))] = z[0];
        bool expected_nan = false, got_nan = false;
        const auto length = static_cast<std::int64_t>(n);
        Unaligned placed(z, repeat);
        EXPECT_EQ(table().argmax(placed.data(), length, &got_nan), portable().argmax(z.data(), length, &expected_nan));
        EXPECT_EQ(got_nan, expected_nan);
      }
    }
  }
}

}  // namespace
}  // namespace outrider
