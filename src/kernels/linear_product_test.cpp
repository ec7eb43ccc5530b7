// Products of coded rows with affine and e2m1 weights (numerics.md section 2): the portable table against the text,
// evaluated here from unpacked codes; the others against the portable one, byte by byte.
#include "kernels/linear_test_data.h"

namespace outrider {
namespace {

using linear_test::affine_matrix;
using linear_test::awkward_rows;
using linear_test::bits_of;
using linear_test::e2m1_matrix;
using linear_test::fnv1a;
using linear_test::Random;
using linear_test::TestCodes;
using linear_test::TestMatrix;
using linear_test::TestOutput;

constexpr FloatType kTypes[] = {FloatType::f16, FloatType::bf16, FloatType::f32};
constexpr int kGroups[] = {32, 64, 128};
constexpr int kBits[] = {2, 3, 4, 5, 6, 8};

// One way to store a matrix whose inputs are coded.
struct Format {
  PackedKind kind;
  int bits, group;
  FloatType type;

  TestMatrix matrix(std::int64_t n, std::int64_t k, Random& random) const {
    return kind == PackedKind::e2m1 ? e2m1_matrix(n, k, group, random) : affine_matrix(n, k, bits, group, type, random);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(bits * 1000 + group + static_cast<int>(type)); }
};

std::ostream& operator<<(std::ostream& out, const Format& f) {
  return out << (f.kind == PackedKind::e2m1 ? "e2m1" : "affine") << " b " << f.bits << " G " << f.group << " type "
             << static_cast<int>(f.type);
}

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const int bits : kBits)
    for (const int group : kGroups)
      for (const FloatType type : kTypes) formats.push_back({PackedKind::affine, bits, group, type});
  for (const int group : {16, 32}) formats.push_back({PackedKind::e2m1, 4, group, FloatType::f32});
  return formats;
}

const KernelTable& portable() { return *kernel_table(Isa::portable); }

// Mistakes that the data of these tests must be able to show.
enum class Mistake {
  none,
  inner_rounded_twice,
  outer_rounded_twice,
  bias_fused,
  groups_descending,
  scale_and_s_multiplied_first
};
constexpr Mistake kMistakes[] = {Mistake::inner_rounded_twice, Mistake::outer_rounded_twice, Mistake::bias_fused,
                                 Mistake::groups_descending, Mistake::scale_and_s_multiplied_first};

// One output after the text, or with one mistake.
float text_value(const TestMatrix& m, const CodedRows& x, std::int64_t row, std::int64_t o, Mistake mistake) {
  const std::int64_t group = m.packed.group, groups = m.packed.k / group;
  float t = 0.0F;
  for (std::int64_t step = 0; step < groups; ++step) {
    const std::int64_t g = mistake == Mistake::groups_descending ? groups - 1 - step : step;
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < group; ++i) {
      sum += std::int64_t{m.codes[o * m.packed.k + g * group + i]} * x.codes[(g * x.rows + row) * group + i];
    }
    const float scale = m.scales[o * groups + g], bias = m.biases[o * groups + g];
    const float s = x.scales[(g * x.rows + row) * 2], total = x.scales[(g * x.rows + row) * 2 + 1];
    const auto integer = static_cast<float>(sum);
    volatile float product = scale * integer, biased = bias * total;  // volatile: rounded here, never fused
    float inner = std::fma(scale, integer, biased);
    if (mistake == Mistake::inner_rounded_twice) inner = product + biased;
    if (mistake == Mistake::bias_fused) inner = std::fma(bias, total, product);
    if (mistake == Mistake::scale_and_s_multiplied_first) {
      volatile float both = s * scale, rest = s * biased;
      t += std::fma(both, integer, rest);
      continue;
    }
    volatile float outer = s * inner;
    t = mistake == Mistake::outer_rounded_twice ? t + outer : std::fma(s, inner, t);
  }
  return t;
}

// The value of one output in f64, and the sum of the magnitudes of its terms.
struct Exact {
  double value = 0.0;
  double magnitude = 0.0;
};
Exact exact_value(const TestMatrix& m, const CodedRows& x, std::int64_t row, std::int64_t o) {
  const std::int64_t group = m.packed.group, groups = m.packed.k / group;
  Exact exact;
  for (std::int64_t g = 0; g < groups; ++g) {
    const double scale = m.scales[o * groups + g], bias = m.biases[o * groups + g];
    const double s = x.scales[(g * x.rows + row) * 2];
    for (std::int64_t i = 0; i < group; ++i) {
      const double code = x.codes[(g * x.rows + row) * group + i];
      const double weight = scale * m.codes[o * m.packed.k + g * group + i];
      exact.value += s * code * (weight + bias);
      exact.magnitude += std::fabs(s * code) * (std::fabs(weight) + std::fabs(bias));
    }
  }
  return exact;
}

// The layout of the codes is the table's own: a product reads those of its own code_rows.
TestCodes code(const KernelTable& table, const std::vector<float>& x, std::int64_t rows, std::int64_t k, int group) {
  TestCodes out(rows, k, group);
  table.code_rows(x.data(), k, k, group, {0, rows}, out.coded, out.faults.data());
  return out;
}

TestOutput run(const KernelTable& table, const TestMatrix& m, Range strips, const TestCodes& x, Range rows,
               std::int64_t all_rows) {
  TestOutput y(all_rows, m.packed.n);
  table.product(m.packed, strips, x.coded, rows, y.data(), y.ld);
  return y;
}

// `full` inside rows and strips, untouched elsewhere.
TestOutput only(const TestOutput& full, const TestMatrix& m, Range strips, Range rows, std::int64_t all_rows) {
  TestOutput y(all_rows, m.packed.n);
  const std::int64_t begin = strips.begin * 96, end = std::min(strips.end * 96, m.packed.n);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    for (std::int64_t o = begin; o < end; ++o) y.data()[r * y.ld + o] = full.row(r)[o];
  }
  return y;
}

TEST(LinearProduct, IsTheTextAndEveryMistakeWouldShow) {
  for (const Format& format : all_formats()) {
    SCOPED_TRACE(testing::Message() << format);
    Random random(format.seed());
    const std::int64_t k = 4 * format.group, n = 113, rows = 24;
    const TestMatrix m = format.matrix(n, k, random);
    const TestCodes x = code(portable(), awkward_rows(rows, k, random), rows, k, format.group);
    const TestOutput y = run(portable(), m, {0, 2}, x, {0, rows}, rows);
    std::int64_t shown[std::size(kMistakes)] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < n; ++o) {
        const float value = y.row(r)[o];
        ASSERT_EQ(bits_of(value), bits_of(text_value(m, x.coded, r, o, Mistake::none))) << r << " " << o;
        for (std::size_t i = 0; i < std::size(kMistakes); ++i) {
          shown[i] += bits_of(value) != bits_of(text_value(m, x.coded, r, o, kMistakes[i])) ? 1 : 0;
        }
      }
    }
    for (std::size_t i = 0; i < std::size(kMistakes); ++i) {
      // Without a bias there is nothing to fuse or to round twice; a power of two as the scale rounds nothing.
      const bool can_show = format.kind == PackedKind::affine || kMistakes[i] == Mistake::outer_rounded_twice ||
                            kMistakes[i] == Mistake::groups_descending;
      if (can_show) EXPECT_GT(shown[i], 100) << "mistake " << i + 1;
    }
  }
}

TEST(LinearProduct, StaysWithinTheRoundingOfItsGroups) {
  for (const Format& format : all_formats()) {
    SCOPED_TRACE(testing::Message() << format);
    Random random(format.seed());
    const std::int64_t k = 5 * format.group, n = 50, rows = 12;
    const TestMatrix m = format.matrix(n, k, random);
    std::vector<float> input(static_cast<std::size_t>(rows * k));
    for (float& value : input) value = random.signed_unit();
    const TestCodes x = code(portable(), input, rows, k, format.group);
    const TestOutput y = run(portable(), m, {0, 1}, x, {0, rows}, rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < n; ++o) {
        const Exact exact = exact_value(m, x.coded, r, o);
        // Per group: float(I), bias*float(S), the inner fma, the outer one and the sum of those before.
        EXPECT_NEAR(y.row(r)[o], exact.value, exact.magnitude * 0x1p-24 * (4 + 5));
      }
    }
  }
}

TEST(LinearProduct, ReachesTheLargestSumsExactly) {
  // All codes 255 and all inputs equal: I = 255*32767*128 is the largest int32 the law allows.
  Random random(1);
  TestMatrix m = affine_matrix(17, 256, 8, 128, FloatType::f32, random);
  const std::size_t block = 128 + 128 * 16;
  for (std::size_t at = 0; at < m.bytes.size(); at += block) {
    float ones[16], zeros[16] = {};
    std::fill(ones, ones + 16, 1.0F);
    std::memcpy(m.bytes.data() + at, ones, 64);
    std::memcpy(m.bytes.data() + at + 64, zeros, 64);
    std::memset(m.bytes.data() + at + 128, 0xff, block - 128);
  }
  for (const float input : {1.0F, -1.0F}) {
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::amx}) {
      if (kernel_table(isa) == nullptr) continue;
      const TestCodes x = code(*kernel_table(isa), std::vector<float>(256 * 9, input), 9, 256, 128);
      for (const Range rows : {Range{0, 1}, Range{0, 8}, Range{0, 9}}) {
        const TestOutput y = run(*kernel_table(isa), m, {0, 1}, x, rows, 9);
        const float t = std::fma(1.0F / 32767.0F, static_cast<float>(255 * 32767 * 128), 0.0F);
        const float expected = std::fma(1.0F / 32767.0F, static_cast<float>(255 * 32767 * 128), t);
        EXPECT_EQ(y.row(0)[0], input * expected) << name_of(isa);
        EXPECT_EQ(y.row(rows.end - 1)[16], input * expected) << name_of(isa);
      }
    }
  }
}

TEST(LinearProduct, HasTheRecordedBytes) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const Format& format : all_formats()) {
    Random random(77);
    const std::int64_t k = 3 * format.group, n = 101, rows = 6;
    const TestMatrix m = format.matrix(n, k, random);
    const TestCodes x = code(portable(), awkward_rows(rows, k, random), rows, k, format.group);
    hash = fnv1a(m.bytes.data(), m.bytes.size(), hash);
    const TestOutput y = run(portable(), m, {0, 2}, x, {0, rows}, rows);
    for (const std::int64_t r : {0, 1, 2, 3, 5}) hash = fnv1a(y.row(r), n * sizeof(float), hash);  // 4: may overflow
  }
  EXPECT_EQ(hash, 15682312021442972061U);
}

TEST(LinearProduct, LeavesNeighboursOfAFaultyRowAlone) {
  Random random(3);
  const std::int64_t k = 128, n = 40, rows = 12;
  const TestMatrix m = affine_matrix(n, k, 4, 64, FloatType::bf16, random);
  std::vector<float> input = awkward_rows(rows, k, random);
  const TestOutput with = run(portable(), m, {0, 1}, code(portable(), input, rows, k, 64), {0, rows}, rows);
  for (std::int64_t r = 7; r <= 9; ++r) {
    for (std::int64_t o = 0; o < n; ++o) EXPECT_TRUE(std::isnan(with.row(r)[o]));
    std::fill_n(input.begin() + r * k, k, 1.0F);
  }
  const TestOutput without = run(portable(), m, {0, 1}, code(portable(), input, rows, k, 64), {0, rows}, rows);
  for (const std::int64_t r : {0, 1, 2, 3, 5, 6, 10, 11}) {
    EXPECT_EQ(std::memcmp(with.row(r), without.row(r), n * sizeof(float)), 0) << r;
  }
}

class LinearProductTable : public linear_test::VectorTable {
 protected:
  // Every row count and range of rows and strips of one matrix against the portable bytes.
  void check(const TestMatrix& m, const std::vector<float>& input, std::int64_t all_rows) const {
    const std::int64_t k = m.packed.k, strips = (m.packed.n + 95) / 96;
    const TestCodes x = code(table(), input, all_rows, k, m.packed.group);
    const TestOutput full =
        run(portable(), m, {0, strips}, code(portable(), input, all_rows, k, m.packed.group), {0, all_rows}, all_rows);
    for (const std::int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 12, 17, 64, 130}) {
      const std::int64_t begin = std::min<std::int64_t>(count % 5, all_rows - count);
      const Range rows{begin, begin + count};
      ASSERT_TRUE(run(table(), m, {0, strips}, x, rows, all_rows) == only(full, m, {0, strips}, rows, all_rows))
          << count << " rows of " << all_rows;
      const TestCodes alone = code(table(), input, count, k, m.packed.group);  // the same rows with another stride
      ASSERT_TRUE(run(table(), m, {0, strips}, alone, {0, count}, all_rows) ==
                  only(full, m, {0, strips}, {0, count}, all_rows))
          << count << " rows alone";
    }
    for (const Range some : {Range{0, 1}, Range{strips - 1, strips}, Range{1, 1}}) {
      for (const Range rows : {Range{2, 3}, Range{3, 16}, Range{4, 4}}) {
        ASSERT_TRUE(run(table(), m, some, x, rows, all_rows) == only(full, m, some, rows, all_rows))
            << "strips " << some.begin << ".." << some.end;
      }
    }
  }
};

TEST_P(LinearProductTable, EqualsThePortableBytesForEveryFormat) {
  for (const Format& format : all_formats()) {
    SCOPED_TRACE(testing::Message() << format);
    Random random(format.seed());
    const TestMatrix m = format.matrix(97, 3 * format.group, random);
    check(m, awkward_rows(130, 3 * format.group, random), 130);
  }
}

TEST_P(LinearProductTable, EqualsThePortableBytesForEveryWidthOfTheLastStrip) {
  for (const Format& format : all_formats()) {
    if (format.type != FloatType::f16 && format.kind == PackedKind::affine) continue;
    if (format.group != 32) continue;
    for (const std::int64_t n : {1, 15, 17, 33, 50, 64, 65, 95, 96, 200}) {
      SCOPED_TRACE(testing::Message() << format << " N " << n);
      Random random(static_cast<std::uint64_t>(n * 2) + format.seed());
      const TestMatrix m = format.matrix(n, 64, random);
      check(m, awkward_rows(130, 64, random), 130);
    }
  }
}

// Kernels take several small groups of K at once: full takes, and one that K cuts short.
TEST_P(LinearProductTable, EqualsThePortableBytesForManySmallGroups) {
  for (const Format& format : all_formats()) {
    if (format.group > 32 || (format.kind == PackedKind::affine && format.type != FloatType::bf16)) continue;
    for (const std::int64_t groups : {8, 11}) {
      SCOPED_TRACE(testing::Message() << format << " groups " << groups);
      Random random(format.seed() + static_cast<std::uint64_t>(groups));
      const TestMatrix m = format.matrix(121, groups * format.group, random);
      check(m, awkward_rows(130, groups * format.group, random), 130);
    }
  }
}

TEST_P(LinearProductTable, EqualsThePortableBytesForAllEqualAndSingleGroupInputs) {
  Random random(9);
  const TestMatrix m = affine_matrix(31, 128, 4, 128, FloatType::f32, random);
  for (const float value : {0.3F, -1.0F, 0.0F, 0x1p-120F, 3e38F}) {
    check(m, std::vector<float>(130 * 128, value), 130);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearProductTable, linear_test::kVectorIsas, linear_test::isa_name);

}  // namespace
}  // namespace outrider
