// The kernels of the gated delta net: the portable table against its formulas, the others against its bytes. The rule
// itself is compared with a program in double in device/.
#include <fmt/format.h>

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
    const RecurrentStore store = {1, reinterpret_cast<std::byte*>(to.data())};
    portable().delta_steps({.from = from.data(),
                            .state_stride = 1,
                            .key_width = 2,
                            .columns = 1,
                            .tokens = 1,
                            .q = q,
                            .k = k,
                            .v = &v,
                            .g = &g,
                            .b = &b,
                            .stores = {&store, 1}});
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

// One head: `log` writes of earlier tokens, then `tokens`, S stored after those of `stores`.
struct DeltaCase {
  std::int64_t key_width, value_width, begin, columns;
  std::int64_t log, tokens;
  std::vector<std::int64_t> stores;
};

// Everything of one head's step in one place, with margins between the rows of S that nobody may touch.
struct DeltaData {
  std::vector<float> from, tokens, g, b, log, deltas;
  std::vector<AlignedBuffer> slots;
  std::vector<RecurrentStore> stores;
  std::int64_t stride, log_stride;
};

constexpr float kMargin = -1234.5F;
constexpr std::size_t kSlotOffset = 64;

DeltaData delta_data(const DeltaCase& c, Kind kind, Random& random) {
  DeltaData d;
  d.from = vector_of(kind == Kind::zeros ? Kind::plain : kind, static_cast<std::size_t>(c.key_width * c.value_width),
                     random);
  d.stride = 2 * c.key_width + c.value_width + 3;
  d.tokens = vector_of(kind, static_cast<std::size_t>(c.tokens * d.stride), random);
  for (std::int64_t t = 0; t < 2 * c.tokens; ++t) {
    d.g.push_back(t % 5 == 4 ? 0.0F : std::fabs(random.signed_unit()));
    d.b.push_back(t % 3 == 2 ? 1.0F : std::fabs(random.signed_unit()));
  }
  d.log_stride = c.key_width + c.value_width + 1;
  d.log = vector_of(kind, static_cast<std::size_t>((c.log + 1) * d.log_stride), random);
  d.deltas.assign(static_cast<std::size_t>(c.tokens * c.value_width), kMargin);
  return d;
}

// Slots of `d` filled with the margin, `shift` floats off their alignment.
void open_slots(const DeltaCase& c, DeltaData& d, std::size_t shift) {
  d.slots.clear();
  d.stores.clear();
  for (const std::int64_t tokens : c.stores) {
    AlignedBuffer& slot = d.slots.emplace_back(kSlotOffset + (d.from.size() + 16) * sizeof(float), MemoryPart::scratch);
    std::fill(slot.as<float>().begin(), slot.as<float>().end(), kMargin);
    d.stores.push_back({tokens, slot.data() + shift * sizeof(float)});
  }
}

struct DeltaRun {
  bool zeros = false;
  DeltaStore store = DeltaStore::cached;
  std::size_t shift = 0;
};

DeltaSteps steps_of(const DeltaCase& c, DeltaData& d, const DeltaRun& run) {
  open_slots(c, d, run.shift);
  const float* const log = d.log.data();
  return {
      .from = run.zeros ? nullptr : d.from.data() + c.begin,
      .log = {run.zeros ? 0 : c.log, log, log + c.key_width + c.begin, log + c.key_width + c.value_width, d.log_stride},
      .state_stride = c.value_width,
      .key_width = c.key_width,
      .columns = c.columns,
      .tokens = c.tokens,
      .q = d.tokens.data(),
      .k = d.tokens.data() + c.key_width,
      .v = d.tokens.data() + 2 * c.key_width + c.begin,
      .token_stride = d.stride,
      .g = d.g.data(),
      .b = d.b.data(),
      .gate_stride = 2,
      .stores = d.stores,
      .store_offset = kSlotOffset + static_cast<std::size_t>(c.begin) * sizeof(float),
      .store = run.store,
      .deltas = d.deltas.data() + c.begin,
      .delta_stride = c.value_width};
}

// Without slots, which steps_of() opens.
DeltaData copy_of(const DeltaData& d) {
  return {d.from, d.tokens, d.g, d.b, d.log, d.deltas, {}, {}, d.stride, d.log_stride};
}

bool same(const DeltaData& a, const DeltaData& b) {
  bool equal = same_bytes(a.tokens, b.tokens) && same_bytes(a.deltas, b.deltas);
  for (std::size_t i = 0; i < a.slots.size(); ++i) {
    const std::span<const float> x = a.slots[i].as<float>(), y = b.slots[i].as<float>();
    equal = equal && same_bytes({x.begin(), x.end()}, {y.begin(), y.end()});
  }
  return equal;
}

const DeltaCase kDeltaCases[] = {
    {16, 16, 0, 16, 0, 1, {1}},          {16, 16, 0, 16, 0, 4, {4}},        {5, 7, 2, 5, 1, 3, {1}},
    {128, 128, 0, 128, 0, 5, {1, 3, 5}}, {128, 128, 32, 64, 3, 2, {1}},     {128, 128, 0, 128, 4, 4, {1, 4}},
    {64, 100, 0, 100, 2, 3, {3}},        {1, 33, 0, 33, 0, 6, {2, 3}},      {20, 70, 3, 47, 1, 1, {1}},
    {32, 1, 0, 1, 5, 9, {1, 2, 3, 4}},   {20, 80, 16, 55, 2, 4, {1, 2, 4}}, {256, 96, 0, 96, 1, 3, {1}}};

std::string describe(const DeltaCase& c) {
  return fmt::format("{}x{} [{}, +{}), log of {}, {} tokens, {} stores", c.key_width, c.value_width, c.begin, c.columns,
                     c.log, c.tokens, c.stores.size());
}

TEST_P(DeltaKernels, DeltaStepsGiveThePortableBytes) {
  Random random(6);
  for (const DeltaCase& c : kDeltaCases)
    for (const Kind kind : {Kind::plain, Kind::equal, Kind::zeros, Kind::tiny, Kind::mixed, Kind::with_nan, Kind::huge})
      for (const bool zeros : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, kind {}", describe(c), static_cast<int>(kind)));
        const DeltaData data = delta_data(c, kind, random);
        DeltaData expected = copy_of(data), got = copy_of(data);
        portable().delta_steps(steps_of(c, expected, {.zeros = zeros}));
        table().delta_steps(steps_of(c, got, {.zeros = zeros}));
        ASSERT_TRUE(same(expected, got));
      }
}

// Aligned states are streamed, others are not; columns that do not fill a register never are.
TEST_P(DeltaKernels, StreamedStatesAreTheBytesOfCachedOnes) {
  Random random(8);
  for (const DeltaCase& c : kDeltaCases)
    for (const std::size_t shift : {0U, 1U}) {
      SCOPED_TRACE(fmt::format("{}, shift {}", describe(c), shift));
      const DeltaData data = delta_data(c, Kind::plain, random);
      DeltaData expected = copy_of(data), got = copy_of(data);
      portable().delta_steps(steps_of(c, expected, {.shift = shift}));
      table().delta_steps(steps_of(c, got, {.store = DeltaStore::streamed, .shift = shift}));
      ASSERT_TRUE(same(expected, got));
    }
}

// A token at a time from stored states; from a state and the deltas of the tokens behind it: the bytes of all at once.
TEST_P(DeltaKernels, AStateAndItsLogAreTheStateOfTheTokensBehindIt) {
  Random random(7);
  constexpr std::int64_t kKeys = 64, kValues = 96, kTokens = 6;
  const DeltaCase all = {kKeys, kValues, 0, kValues, 0, kTokens, {1, 2, 3, 4, 5, 6}};
  const DeltaData data = delta_data(all, Kind::plain, random);
  DeltaData once = copy_of(data);
  table().delta_steps(steps_of(all, once, {}));
  for (std::int64_t base = 1; base < kTokens; ++base)
    for (std::int64_t logged = 0; base + logged < kTokens; ++logged) {
      SCOPED_TRACE(testing::Message() << "stored after " << base << ", " << logged << " logged");
      DeltaData apart = copy_of(data);
      // The log as a device keeps it: k, delta, g of each token behind the stored one.
      apart.log.clear();
      for (std::int64_t t = base; t < base + logged; ++t) {
        const float* const k = data.tokens.data() + t * data.stride + kKeys;
        const float* const delta = once.deltas.data() + (t - 1) * kValues;
        apart.log.insert(apart.log.end(), k, k + kKeys);
        apart.log.insert(apart.log.end(), delta, delta + kValues);
        apart.log.push_back(data.g[static_cast<std::size_t>(2 * t)]);
      }
      const DeltaCase one = {kKeys, kValues, 0, kValues, logged, 1, {1}};
      DeltaSteps steps = steps_of(one, apart, {});
      const auto at = static_cast<std::ptrdiff_t>(base + logged);
      const std::span<const float> stored = once.slots[static_cast<std::size_t>(base - 1)].as<float>();
      steps.from = stored.data() + kSlotOffset / sizeof(float);
      steps.q += at * data.stride;
      steps.k += at * data.stride;
      steps.v += at * data.stride;
      steps.g += 2 * at;
      steps.b += 2 * at;
      table().delta_steps(steps);
      const std::span<const float> want = once.slots[static_cast<std::size_t>(at)].as<float>();
      const std::span<const float> got = apart.slots[0].as<float>();
      ASSERT_TRUE(same_bytes({want.begin(), want.end()}, {got.begin(), got.end()}));
      const auto y = [&](const DeltaData& d) { return d.tokens.data() + at * d.stride + 2 * kKeys; };
      ASSERT_TRUE(std::equal(y(apart), y(apart) + kValues, y(once)));
    }
}

}  // namespace
}  // namespace outrider
