// The kernels of the gated delta net: the portable table against its formulas, the others against its bytes. The rule
// itself is compared with a program in double in device/.
#include "base/memory.h"
#include "kernels/math.h"
#include "kernels/vector_test_data.h"

namespace outrider {
namespace {

using namespace vector_test;  // NOLINT: the data of these tests

const KernelTable& portable() { return portable_table_under_test(); }

class DeltaKernels : public VectorTable {};
INSTANTIATE_TEST_SUITE_P(Isas, DeltaKernels, kVectorIsas, isa_name);

std::int64_t signed_size(const std::vector<float>& x) { return static_cast<std::int64_t>(x.size()); }

// --- the portable table ---

TEST(ConvSilu, IsAChainOverTheTapsAscending) {
  Random random(1);
  const std::vector<float> w = bells(4 * 20, random), p = bells(4 * 16, random);
  const float* rows[] = {nullptr, p.data() + 16, p.data() + 32, p.data() + 48};
  std::vector<float> u(16);
  portable().conv_silu(rows, w.data(), 20, 4, 16, u.data());
  for (std::size_t i = 0; i < 16; ++i) {
    const float first = w[20 + i] * p[16 + i];
    const float c = std::fma(w[60 + i], p[48 + i], std::fma(w[40 + i], p[32 + i], first));
    EXPECT_EQ(bits(u[i]), bits(silu32(c)));
  }
}

TEST(L2Norm, MatchesADoubleReference) {
  Random random(2);
  for (const std::size_t n : kLengths)
    for (const float factor : {1.0F, 1e-3F}) {
      const std::vector<float> x = bells(n, random, factor);
      std::vector<float> y(n);
      portable().l2_norm(x.data(), signed_size(x), 1e-6F, y.data());
      double sum = 0;
      for (const float v : x) sum += static_cast<double>(v) * v;
      const double r = 1 / std::sqrt(sum + 1e-6);
      for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i] * r, 5e-7 * std::fabs(x[i] * r)) << n;
    }
}

TEST(DeltaGates, FollowTheirDefinitions) {
  const std::vector<float> a_log = {0.3F, 8.0F, -5.0F, 1.0F}, dt_bias = {0.1F, 3.0F, 0.0F, -400.0F};
  const std::vector<float> raw_a = {-0.7F, 2.0F, 25.0F, 0.0F}, raw_b = {0.0F, -200.0F, 200.0F, 1.5F};
  std::vector<float> a = raw_a, b = raw_b;
  portable().delta_gates(a_log.data(), dt_bias.data(), 4, a.data(), b.data());
  for (std::size_t h = 0; h < 4; ++h) {
    EXPECT_EQ(bits(a[h]), bits(exp32(-exp32(a_log[h]) * softplus32(raw_a[h] + dt_bias[h]))));
    EXPECT_EQ(bits(b[h]), bits(sigmoid32(raw_b[h])));
  }
  EXPECT_EQ(a[1], 0.0F);  // the decay underflows
  EXPECT_EQ(a[3], 1.0F);  // softplus is 0
  EXPECT_EQ(b[1], 0.0F);
  EXPECT_EQ(b[2], 1.0F);
}

TEST(GatedNorm, IsNormThenWeightThenGate) {
  Random random(3);
  const std::vector<float> y = bells(40, random), z = bells(40, random), w = bells(40, random), ones(40, 1.0F);
  std::vector<float> x(40), normed(40);
  portable().gated_norm(y.data(), z.data(), w.data(), 40, 1e-6F, x.data());
  portable().rms_norm(y.data(), w.data(), 40, 1e-6F, normed.data());
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(bits(x[i]), bits(normed[i] * silu32(z[i])));
}

// Section 6 by hand, one column of two keys.
TEST(DeltaSteps, KeepTheOrderOfSection6) {
  Random random(4);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const std::vector<float> x = bells(9, random);
    const float g = std::fabs(x[0]), b = std::fabs(x[1]), k[] = {x[2], x[3]}, q[] = {x[4], x[5]};
    const std::vector<float> from = {x[6], x[7]};
    float v = x[8];
    std::vector<float> to(2);
    portable().delta_steps({.from = from.data(),
                            .to = to.data(),
                            .state_stride = 1,
                            .key_width = 2,
                            .columns = 1,
                            .tokens = 1,
                            .q = q,
                            .k = k,
                            .v = &v,
                            .g = &g,
                            .b = &b});
    const float s0 = g * from[0], s1 = g * from[1];
    const float r = std::fma(s1, k[1], s0 * k[0]), delta = b * (x[8] - r);
    EXPECT_EQ(bits(to[0]), bits(std::fma(k[0], delta, s0)));
    EXPECT_EQ(bits(to[1]), bits(std::fma(k[1], delta, s1)));
    EXPECT_EQ(bits(v), bits(std::fma(to[1], q[1], to[0] * q[0])));
  }
}

// --- every other table, byte for byte ---

TEST_P(DeltaKernels, GiveThePortableBytesForEveryLengthAndKindOfInput) {
  Random random(5);
  for (const std::size_t n : kLengths)
    for (const Kind kind : kKinds) {
      SCOPED_TRACE(testing::Message() << "length " << n << ", kind " << static_cast<int>(kind));
      const auto length = static_cast<std::int64_t>(n);
      const std::vector<float> x = vector_of(kind, n, random), z = vector_of(kKinds[random.below(10)], n, random);
      const std::vector<float> w = bells(n, random), p = vector_of(kKinds[random.below(10)], n, random);
      for (const std::size_t shift : {0U, 3U}) {
        Unaligned expected(x, shift), got(x, shift);
        portable().l2_norm(expected.data(), length, 1e-6F, expected.data());
        table().l2_norm(got.data(), length, 1e-6F, got.data());
        ASSERT_TRUE(same_bytes(expected.values(), got.values()) && got.margin_untouched());
        Unaligned expected_z(z, shift), got_z(z, shift);
        portable().gated_norm(x.data(), expected_z.data(), w.data(), length, 1e-6F, expected_z.data());
        table().gated_norm(x.data(), got_z.data(), w.data(), length, 1e-6F, got_z.data());
        ASSERT_TRUE(same_bytes(expected_z.values(), got_z.values()) && got_z.margin_untouched());
        Unaligned expected_a(x, shift), got_a(x, shift), expected_b(z, shift), got_b(z, shift);
        portable().delta_gates(p.data(), w.data(), length, expected_a.data(), expected_b.data());
        table().delta_gates(p.data(), w.data(), length, got_a.data(), got_b.data());
        ASSERT_TRUE(same_bytes(expected_a.values(), got_a.values()) && got_a.margin_untouched());
        ASSERT_TRUE(same_bytes(expected_b.values(), got_b.values()) && got_b.margin_untouched());
        const std::vector<float> taps = bells(4 * (n + 5), random);
        Unaligned expected_u(x, shift), got_u(x, shift);
        const float* rows[] = {z.data(), random.below(2) == 0 ? nullptr : p.data(), w.data(), expected_u.data()};
        portable().conv_silu(rows, taps.data(), length + 5, 4, length, expected_u.data());
        rows[3] = got_u.data();
        table().conv_silu(rows, taps.data(), length + 5, 4, length, got_u.data());
        ASSERT_TRUE(same_bytes(expected_u.values(), got_u.values()) && got_u.margin_untouched());
      }
    }
}

// softplus over many bit patterns, by gates whose outer exponentials keep its last bits: -1*softplus is exp's input.
TEST_P(DeltaKernels, SoftplusOfEveryKindOfBitsIsTheScalarOne) {
  std::vector<float> a;
  for (std::uint64_t b = 0; b < 0x100000000U; b += 9973)
    a.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(b)));
  for (const float edge : {20.0F, -87.3F, 0.0F, 88.8F})
    for (const float v : {std::nextafter(edge, -kInfinity), edge, std::nextafter(edge, kInfinity)}) a.push_back(v);
  for (const float a_log : {0.0F, -30.0F, 5.0F}) {
    const std::vector<float> logs(a.size(), a_log), zeros(a.size());
    std::vector<float> expected = a, got = a, expected_b = zeros, got_b = zeros;
    portable().delta_gates(logs.data(), zeros.data(), signed_size(a), expected.data(), expected_b.data());
    table().delta_gates(logs.data(), zeros.data(), signed_size(a), got.data(), got_b.data());
    EXPECT_TRUE(same_bytes(expected, got)) << a_log;
  }
}

struct DeltaCase {
  std::int64_t key_width, value_width, begin, columns, tokens;
};

// Everything of one head's step in one place, with margins between the rows of S that nobody may touch.
struct DeltaData {
  std::vector<float> from, to, tokens, g, b;
  std::int64_t stride;
};

DeltaData delta_data(const DeltaCase& c, Kind kind, Random& random) {
  DeltaData d;
  d.from = vector_of(kind == Kind::zeros ? Kind::plain : kind, static_cast<std::size_t>(c.key_width * c.value_width),
                     random);
  d.to.assign(d.from.size(), -1234.5F);
  d.stride = 2 * c.key_width + c.value_width + 3;
  d.tokens = vector_of(kind, static_cast<std::size_t>(c.tokens * d.stride), random);
  for (std::int64_t t = 0; t < 2 * c.tokens; ++t) {
    d.g.push_back(t % 5 == 4 ? 0.0F : std::fabs(random.signed_unit()));
    d.b.push_back(t % 3 == 2 ? 1.0F : std::fabs(random.signed_unit()));
  }
  return d;
}

DeltaSteps steps_of(const DeltaCase& c, DeltaData& d, bool zeros, std::int64_t first, std::int64_t tokens) {
  float* const token = d.tokens.data() + first * d.stride;
  return {.from = zeros ? nullptr : d.from.data() + c.begin,
          .to = d.to.data() + c.begin,
          .state_stride = c.value_width,
          .key_width = c.key_width,
          .columns = c.columns,
          .tokens = tokens,
          .q = token,
          .k = token + c.key_width,
          .v = token + 2 * c.key_width + c.begin,
          .token_stride = d.stride,
          .g = d.g.data() + 2 * first,
          .b = d.b.data() + 2 * first,
          .gate_stride = 2};
}

void run_steps(const KernelTable& table, const DeltaCase& c, DeltaData& d, bool zeros, std::int64_t first,
               std::int64_t tokens) {
  table.delta_steps(steps_of(c, d, zeros, first, tokens));
}

TEST_P(DeltaKernels, DeltaStepsGiveThePortableBytes) {
  Random random(6);
  for (const DeltaCase& c :
       {DeltaCase{16, 16, 0, 16, 1}, DeltaCase{16, 16, 0, 16, 4}, DeltaCase{5, 7, 2, 5, 3},
        DeltaCase{128, 128, 0, 128, 5}, DeltaCase{128, 128, 32, 64, 2}, DeltaCase{64, 100, 0, 100, 3},
        DeltaCase{1, 33, 0, 33, 6}, DeltaCase{20, 70, 3, 47, 1}, DeltaCase{32, 1, 0, 1, 9}})
    for (const Kind kind : {Kind::plain, Kind::equal, Kind::zeros, Kind::tiny, Kind::mixed, Kind::with_nan, Kind::huge})
      for (const bool zeros : {false, true}) {
        SCOPED_TRACE(testing::Message() << c.key_width << "x" << c.value_width << " [" << c.begin << ", +" << c.columns
                                        << "), " << c.tokens << " tokens, kind " << static_cast<int>(kind));
        DeltaData expected = delta_data(c, kind, random), got = expected;
        run_steps(portable(), c, expected, zeros, 0, c.tokens);
        run_steps(table(), c, got, zeros, 0, c.tokens);
        ASSERT_TRUE(same_bytes(expected.to, got.to));
        ASSERT_TRUE(same_bytes(expected.tokens, got.tokens));
      }
}

// Aligned states are streamed, others are not; columns that do not fill a register never are.
TEST_P(DeltaKernels, StreamedStatesAreTheBytesOfCachedOnes) {
  Random random(8);
  for (const DeltaCase& c :
       {DeltaCase{16, 16, 0, 16, 1}, DeltaCase{128, 128, 0, 128, 1}, DeltaCase{128, 128, 32, 64, 1},
        DeltaCase{20, 80, 16, 55, 1}, DeltaCase{20, 70, 0, 70, 1}, DeltaCase{16, 32, 0, 32, 3}})
    for (const std::int64_t shift : {0, 1}) {
      SCOPED_TRACE(testing::Message() << c.key_width << "x" << c.value_width << " [" << c.begin << ", +" << c.columns
                                      << "), " << c.tokens << " tokens, shift " << shift);
      DeltaData expected = delta_data(c, Kind::plain, random), got = expected;
      run_steps(portable(), c, expected, false, 0, c.tokens);
      AlignedBuffer memory((got.to.size() + 16) * sizeof(float), MemoryPart::scratch);
      const std::span<float> to = memory.as<float>().subspan(static_cast<std::size_t>(shift), got.to.size());
      std::copy(got.to.begin(), got.to.end(), to.begin());
      DeltaSteps steps = steps_of(c, got, false, 0, c.tokens);
      steps.to = to.data() + c.begin;
      steps.store = DeltaStore::streamed;
      table().delta_steps(steps);
      got.to.assign(to.begin(), to.end());
      ASSERT_TRUE(same_bytes(expected.to, got.to));
      ASSERT_TRUE(same_bytes(expected.tokens, got.tokens));
    }
}

TEST_P(DeltaKernels, DeltaStepsOfATokenAtATimeAreThoseOfAllAtOnce) {
  Random random(7);
  const DeltaCase c = {64, 96, 0, 96, 6};
  DeltaData once = delta_data(c, Kind::plain, random), apart = once;
  run_steps(table(), c, once, false, 0, 6);
  for (std::int64_t t = 0; t < 6; ++t) {
    run_steps(table(), c, apart, false, t, 1);
    if (t < 5) apart.from.swap(apart.to);
  }
  EXPECT_TRUE(same_bytes(once.to, apart.to));
  EXPECT_TRUE(same_bytes(once.tokens, apart.tokens));
}

}  // namespace
}  // namespace outrider
