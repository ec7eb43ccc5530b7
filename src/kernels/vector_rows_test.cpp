// Norms, elementwise kernels and RoPE: the portable table against double references, the others against its bytes.
#include "kernels/math.h"
#include "kernels/vector_test_data.h"

namespace outrider {
namespace {

using namespace vector_test;  // NOLINT: the data of these tests

const KernelTable& portable() { return portable_table_under_test(); }

class VectorRows : public VectorTable {};
INSTANTIATE_TEST_SUITE_P(Isas, VectorRows, kVectorIsas, isa_name);

// --- the portable table ---

TEST(RmsNorm, MatchesADoubleReference) {
  Random random(1);
  for (std::size_t n : kLengths) {
    const std::vector<float> x = bells(n, random, 3.0F), w = bells(n, random);
    std::vector<float> y(n);
    portable().rms_norm(x.data(), w.data(), static_cast<std::int64_t>(n), 1e-5F, y.data());
    double sum = 0.0;
    for (float v : x) sum += static_cast<double>(v) * v;
    const double r = 1.0 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(1e-5F));
    for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i] * r * w[i], 5e-7 * std::fabs(x[i] * r * w[i])) << n;
  }
}

// Section 4 by hand: 18 elements, so lanes 0 and 1 hold a chain of two.
TEST(RmsNorm, AddsSixteenLanesByTheTree) {
  Random random(2);
  int differs = 0;
  for (int repeat = 0; repeat < 50; ++repeat) {
    const std::vector<float> x = bells(18, random), w(18, 1.0F);
    std::vector<float> y(18);
    portable().rms_norm(x.data(), w.data(), 18, 0.0F, y.data());
    float lane[16] = {};
    for (int i = 0; i < 16; ++i) lane[i] = x[i] * x[i];
    lane[0] = std::fma(x[16], x[16], lane[0]);
    lane[1] = std::fma(x[17], x[17], lane[1]);
    for (int step : {8, 4, 2, 1}) {
      for (int i = 0; i < step; ++i) lane[i] = lane[i] + lane[i + step];
    }
    const float r = 1.0F / std::sqrt(lane[0] / 18.0F);
    float chain = 0.0F;
    for (float v : x) chain = std::fma(v, v, chain);
    differs += lane[0] != chain ? 1 : 0;
    for (int i = 0; i < 18; ++i) EXPECT_EQ(bits(y[i]), bits(x[i] * r));
  }
  EXPECT_GT(differs, 10) << "these inputs cannot tell a tree from a chain";
}

// Only one lane is not zero, so nothing hides the last bit of its chain of fused squares.
std::vector<float> one_lane(int lane, Random& random) {
  std::vector<float> x(64);
  for (int i = lane; i < 64; i += 16) x[i] = bell(random);
  return x;
}

TEST(RmsNorm, FusesTheSquaresOfALane) {
  Random random(12);
  int differs = 0;
  for (int repeat = 0; repeat < 160; ++repeat) {
    const std::vector<float> x = one_lane(repeat % 16, random), w(64, 1.0F);
    std::vector<float> y(64);
    portable().rms_norm(x.data(), w.data(), 64, 0.0F, y.data());
    float fused = 0.0F, rounded_twice = 0.0F;
    for (int i = repeat % 16; i < 64; i += 16) {
      fused = std::fma(x[i], x[i], fused);
      rounded_twice += x[i] * x[i];
    }
    const float r = 1.0F / std::sqrt(fused / 64.0F);
    differs += r != 1.0F / std::sqrt(rounded_twice / 64.0F) ? 1 : 0;
    for (int i = 0; i < 64; ++i) EXPECT_EQ(bits(y[i]), bits(x[i] * r));
  }
  EXPECT_GT(differs, 10) << "these inputs cannot tell one rounding from two";
}

TEST(RmsNorm, RoundsTheProductWithTheFactorBeforeTheWeight) {
  Random random(3);
  const std::vector<float> x = bells(64, random), w = bells(64, random);
  std::vector<float> y(64), ones(64, 1.0F), normed(64);
  portable().rms_norm(x.data(), w.data(), 64, 1e-6F, y.data());
  portable().rms_norm(x.data(), ones.data(), 64, 1e-6F, normed.data());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(bits(y[i]), bits(normed[i] * w[i]));
}

TEST(SiluMul, IsTheScalarSiluTimesUp) {
  Random random(4);
  const std::vector<float> gate = bells(100, random, 20.0F), up = bells(100, random);
  std::vector<float> y(100);
  portable().silu_mul(gate.data(), up.data(), 100, y.data());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(bits(y[i]), bits(silu32(gate[i]) * up[i]));
    const double exact = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    EXPECT_NEAR(y[i], exact, 4e-7 * std::fabs(exact));
  }
}

TEST(RopeAngles, TakeTheF32AngleAndTheF64Functions) {
  std::vector<float> inv_freq(32), cos(32), sin(32);
  for (int i = 0; i < 32; ++i) inv_freq[i] = static_cast<float>(std::pow(1e4, -i / 32.0));
  for (std::int64_t position : {0L, 1L, 4095L, 100000L, 16777217L}) {
    portable().rope_angles(position, inv_freq.data(), 32, 1.0F, cos.data(), sin.data());
    for (int i = 0; i < 32; ++i) {
      const float angle = static_cast<float>(position) * inv_freq[i];
      EXPECT_EQ(bits(cos[i]), bits(static_cast<float>(std::cos(static_cast<long double>(angle)))))
          << position << " " << i;
      EXPECT_EQ(bits(sin[i]), bits(static_cast<float>(std::sin(static_cast<long double>(angle)))))
          << position << " " << i;
    }
  }
}

TEST(RopeAngles, MultiplyByTheAttentionFactorInF32) {
  const float inv_freq[] = {1.0F, 0.1F}, m = 1.1386294F;
  float cos[2], sin[2], plain_cos[2], plain_sin[2];
  portable().rope_angles(77, inv_freq, 2, m, cos, sin);
  portable().rope_angles(77, inv_freq, 2, 1.0F, plain_cos, plain_sin);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(bits(cos[i]), bits(plain_cos[i] * m));
    EXPECT_EQ(bits(sin[i]), bits(plain_sin[i] * m));
  }
}

TEST(SigmoidMul, IsTheInputTimesTheScalarSigmoid) {
  Random random(15);
  const std::vector<float> gate = bells(100, random, 5.0F), x = bells(100, random);
  std::vector<float> y(100);
  portable().sigmoid_mul(gate.data(), x.data(), 100, y.data());
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(bits(y[i]), bits(x[i] * sigmoid32(gate[i])));
}

TEST(RopeRotate, TurnsPairsAndLeavesTheRestAlone) {
  Random random(5);
  for (RopePairs pairs : {RopePairs::half_split, RopePairs::interleaved}) {
    const std::vector<float> before = bells(24, random), angle = bells(8, random);
    std::vector<float> x = before, cos(8), sin(8);
    for (int i = 0; i < 8; ++i) cos[i] = std::cos(angle[i]), sin[i] = std::sin(angle[i]);
    portable().rope_rotate(x.data(), cos.data(), sin.data(), 8, pairs);
    for (int i = 0; i < 8; ++i) {
      const int first = pairs == RopePairs::half_split ? i : 2 * i;
      const int second = pairs == RopePairs::half_split ? i + 8 : 2 * i + 1;
      const float a = before[first], b = before[second];
      EXPECT_EQ(bits(x[first]), bits(std::fma(a, cos[i], -(b * sin[i]))));
      EXPECT_EQ(bits(x[second]), bits(std::fma(b, cos[i], a * sin[i])));
    }
    for (int i = 16; i < 24; ++i) EXPECT_EQ(bits(x[i]), bits(before[i]));
  }
}

TEST(VectorRowBytes, AreThoseOfTheFirstVersion) {
  Random random(6);
  const std::vector<float> x = bells(1001, random), w = bells(1001, random, 4.0F);
  std::vector<float> y(1001), cos(64), sin(64);
  portable().rms_norm(x.data(), w.data(), 1001, 1e-5F, y.data());
  EXPECT_EQ(hash_of(y), 0x18f74e3436f40343U);
  portable().silu_mul(w.data(), x.data(), 1001, y.data());
  EXPECT_EQ(hash_of(y), 0x7bdb774ccde3367eU);
  portable().rope_angles(12345, x.data(), 64, 1.25F, cos.data(), sin.data());
  EXPECT_EQ(hash_of(cos), 0xc7eb89dd5b296525U);
  EXPECT_EQ(hash_of(sin), 0xc2214b8ca949bcc1U);
  portable().rope_rotate(y.data(), cos.data(), sin.data(), 64, RopePairs::half_split);
  portable().rope_rotate(y.data(), cos.data(), sin.data(), 64, RopePairs::interleaved);
  EXPECT_EQ(hash_of(y), 0xf9611fa4487a1d12U);
}

// --- every other table, byte for byte ---

// Runs `kernel(table, inputs, output)` on both tables at several alignments.
template <class Kernel>
void compare(const KernelTable& portable_table, const KernelTable& table, const std::vector<float>& a,
             const std::vector<float>& b, Kernel kernel) {
  for (std::size_t shift : {0U, 1U, 5U}) {
    Unaligned expected_a(a, shift), expected_b(b, shift), expected(a, shift), got_a(a, shift), got_b(b, shift),
        got(a, shift);
    kernel(portable_table, expected_a.data(), expected_b.data(), expected.data());
    kernel(table, got_a.data(), got_b.data(), got.data());
    ASSERT_TRUE(same_bytes(expected.values(), got.values())) << "shift " << shift;
    ASSERT_TRUE(got.margin_untouched() && got_a.margin_untouched() && got_b.margin_untouched());
    // In place, over the first input and over the second.
    kernel(table, got_a.data(), got_b.data(), got_a.data());
    ASSERT_TRUE(same_bytes(expected.values(), got_a.values())) << "in place, shift " << shift;
  }
}

TEST_P(VectorRows, GiveThePortableBytesForEveryLengthAndKindOfInput) {
  Random random(7);
  for (std::size_t n : kLengths) {
    const auto length = static_cast<std::int64_t>(n);
    for (Kind kind : kKinds) {
      SCOPED_TRACE(testing::Message() << "length " << n << ", kind " << static_cast<int>(kind));
      const std::vector<float> a = vector_of(kind, n, random), b = vector_of(kKinds[random.below(10)], n, random);
      compare(portable(), table(), a, b, [&](const KernelTable& t, const float* x, const float* w, float* y) {
        t.rms_norm(x, w, length, 1e-6F, y);
      });
      compare(portable(), table(), a, b,
              [&](const KernelTable& t, const float* x, const float* w, float* y) { t.silu_mul(x, w, length, y); });
      compare(portable(), table(), a, b,
              [&](const KernelTable& t, const float* x, const float* w, float* y) { t.sigmoid_mul(x, w, length, y); });
      compare(portable(), table(), a, b,
              [&](const KernelTable& t, const float* x, const float* w, float* y) { t.add(x, w, length, y); });
      compare(portable(), table(), a, b,
              [&](const KernelTable& t, const float* x, const float* w, float* y) { t.scale(x, w[0], length, y); });
    }
  }
}

TEST_P(VectorRows, RmsNormKeepsTheLastBitOfEveryLane) {
  Random random(13);
  for (int repeat = 0; repeat < 320; ++repeat) {
    std::vector<float> x = one_lane(repeat % 16, random);
    if (repeat >= 160) x.resize(48 + static_cast<std::size_t>(repeat % 16) + 1);  // the last element is a tail
    const std::vector<float> w(x.size(), 1.0F);
    std::vector<float> expected(x.size()), got(x.size());
    portable().rms_norm(x.data(), w.data(), static_cast<std::int64_t>(x.size()), 0.0F, expected.data());
    table().rms_norm(x.data(), w.data(), static_cast<std::int64_t>(x.size()), 0.0F, got.data());
    ASSERT_TRUE(same_bytes(expected, got)) << "lane " << repeat % 16;
  }
}

TEST_P(VectorRows, AddMayWriteOverItsSecondInput) {
  Random random(8);
  const std::vector<float> a = bells(77, random), b = bells(77, random);
  std::vector<float> expected(77), got = b;
  portable().add(a.data(), b.data(), 77, expected.data());
  table().add(a.data(), got.data(), 77, got.data());
  EXPECT_TRUE(same_bytes(expected, got));
}

// silu over many bit patterns: the vector exp is the scalar one for every sign, size and fault.
TEST_P(VectorRows, ExpOfEveryKindOfBitsIsTheScalarOne) {
  std::vector<float> x, ones;
  for (std::uint64_t b = 0; b < 0x100000000U; b += 9973)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(b)));
  for (float edge : {87.3F, -87.3F, 88.72283F, -88.72283F, 88.8F, -88.8F, 87.4F, 0.0F, -0.0F}) {
    for (float v : {std::nextafter(edge, -kInfinity), edge, std::nextafter(edge, kInfinity)}) x.push_back(v);
  }
  ones.assign(x.size(), 1.0F);
  std::vector<float> expected(x.size()), got(x.size());
  portable().silu_mul(x.data(), ones.data(), static_cast<std::int64_t>(x.size()), expected.data());
  table().silu_mul(x.data(), ones.data(), static_cast<std::int64_t>(x.size()), got.data());
  EXPECT_TRUE(same_bytes(expected, got));
}

TEST_P(VectorRows, RopeGivesThePortableBytes) {
  Random random(9);
  for (RopePairs pairs : {RopePairs::half_split, RopePairs::interleaved}) {
    for (std::size_t half : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 9U, 12U, 15U, 16U, 17U, 20U, 24U, 31U, 32U, 40U, 64U, 128U}) {
      for (std::size_t shift : {0U, 3U}) {
        const std::vector<float> x = vector_of(kKinds[random.below(8)], 2 * half, random);
        Unaligned cos(bells(half, random), shift), sin(bells(half, random), shift), expected(x, shift), got(x, shift);
        const auto n = static_cast<std::int64_t>(half);
        portable().rope_rotate(expected.data(), cos.data(), sin.data(), n, pairs);
        table().rope_rotate(got.data(), cos.data(), sin.data(), n, pairs);
        ASSERT_TRUE(same_bytes(expected.values(), got.values())) << half << " pairs " << static_cast<int>(pairs);
        ASSERT_TRUE(got.margin_untouched());
      }
    }
  }
  const std::vector<float> inv_freq = bells(33, random);
  std::vector<float> cos(33), sin(33), other_cos(33), other_sin(33);
  portable().rope_angles(31337, inv_freq.data(), 33, 1.19F, cos.data(), sin.data());
  table().rope_angles(31337, inv_freq.data(), 33, 1.19F, other_cos.data(), other_sin.data());
  EXPECT_TRUE(same_bytes(cos, other_cos));
  EXPECT_TRUE(same_bytes(sin, other_sin));
}

}  // namespace
}  // namespace outrider
