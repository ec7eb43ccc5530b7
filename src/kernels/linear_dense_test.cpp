// Dense products (one fma chain over K) and unpacking of weight rows: the portable table against the text, the others
// against the portable one, byte by byte.
#include "kernels/linear_test_data.h"

namespace outrider {
namespace {

using linear_test::affine_matrix;
using linear_test::awkward_rows;
using linear_test::bits_of;
using linear_test::dense_matrix;
using linear_test::e2m1_matrix;
using linear_test::fnv1a;
using linear_test::Random;
using linear_test::TestMatrix;
using linear_test::TestOutput;

constexpr FloatType kTypes[] = {FloatType::f16, FloatType::bf16, FloatType::f32};
const KernelTable& portable() { return *kernel_table(Isa::portable); }

TestOutput run(const KernelTable& table, const TestMatrix& m, Range strips, const std::vector<float>& x,
               std::int64_t ldx, Range rows, std::int64_t all_rows) {
  TestOutput y(all_rows, m.packed.n);
  table.dense_product(m.packed, strips, x.data(), ldx, rows, y.data(), y.ld);
  return y;
}

TestOutput only(const TestOutput& full, const TestMatrix& m, Range strips, Range rows, std::int64_t all_rows) {
  TestOutput y(all_rows, m.packed.n);
  const std::int64_t begin = strips.begin * 96, end = std::min(strips.end * 96, m.packed.n);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    for (std::int64_t o = begin; o < end; ++o) y.data()[r * y.ld + o] = full.row(r)[o];
  }
  return y;
}

TEST(LinearDense, IsOneAscendingFusedChainAndEveryMistakeWouldShow) {
  for (const FloatType type : kTypes) {
    Random random(41);
    const std::int64_t n = 113, k = 37, rows = 12;
    const TestMatrix m = dense_matrix(n, k, type, random);
    const std::vector<float> x = awkward_rows(rows, k, random);
    const TestOutput y = run(portable(), m, {0, 2}, x, k, {0, rows}, rows);
    std::int64_t descending_shows = 0, unfused_shows = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      if (r >= 7 && r <= 9) continue;  // faulty rows: no bytes are promised
      for (std::int64_t o = 0; o < n; ++o) {
        float chain = 0.0F, descending = 0.0F, unfused = 0.0F;
        double exact = 0.0, magnitude = 0.0;
        for (std::int64_t i = 0; i < k; ++i) {
          const float w = m.values[o * k + i], input = x[r * k + i];
          chain = std::fma(input, w, chain);
          descending = std::fma(x[r * k + k - 1 - i], m.values[o * k + k - 1 - i], descending);
          volatile float product = input * w;
          unfused += product;
          exact += static_cast<double>(input) * w;
          magnitude += std::fabs(static_cast<double>(input) * w);
        }
        ASSERT_EQ(bits_of(y.row(r)[o]), bits_of(chain)) << r << " " << o;
        descending_shows += bits_of(descending) != bits_of(chain) ? 1 : 0;
        unfused_shows += bits_of(unfused) != bits_of(chain) ? 1 : 0;
        if (r != 4) {
          EXPECT_NEAR(chain, exact, (magnitude * 0x1p-24 + 0x1p-149) * static_cast<double>(k));
        }
      }
    }
    EXPECT_GT(descending_shows, 100);
    EXPECT_GT(unfused_shows, 100);
  }
}

TEST(LinearDense, HasTheRecordedBytes) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const FloatType type : kTypes) {
    Random random(43);
    const std::int64_t n = 101, k = 71, rows = 6;
    const TestMatrix m = dense_matrix(n, k, type, random);
    const std::vector<float> x = awkward_rows(rows, k, random);
    hash = fnv1a(m.bytes.data(), m.bytes.size(), hash);
    const TestOutput y = run(portable(), m, {0, 2}, x, k, {0, rows}, rows);
    for (const std::int64_t r : {0, 1, 2, 3, 5}) hash = fnv1a(y.row(r), n * sizeof(float), hash);  // 4: may overflow
  }
  EXPECT_EQ(hash, 14048349500727597433U);
}

TEST(LinearUnpackRow, IsOneFusedMultiplyAddPerWeight) {
  for (const FloatType type : kTypes) {
    for (const int bits : {2, 3, 4, 5, 6, 8}) {
      Random random(47);
      const std::int64_t n = 113, k = 384;
      const TestMatrix m = affine_matrix(n, k, bits, 64, type, random);
      std::int64_t unfused_shows = 0;
      for (std::int64_t row = 0; row < n; ++row) {
        std::vector<float> y(k + 1, 7.0F);
        portable().unpack_row(m.packed, row, y.data());
        for (std::int64_t i = 0; i < k; ++i) {
          const float scale = m.scales[row * (k / 64) + i / 64], bias = m.biases[row * (k / 64) + i / 64];
          const float q = m.codes[row * k + i];
          ASSERT_EQ(bits_of(y[i]), bits_of(std::fma(q, scale, bias))) << row << " " << i;
          volatile float product = q * scale;
          unfused_shows += bits_of(y[i]) != bits_of(product + bias) ? 1 : 0;
        }
        EXPECT_EQ(y[k], 7.0F);
      }
      // With 16-bit scales q*scale is often exact; f32 scales must show the second rounding.
      if (type == FloatType::f32) {
        EXPECT_GT(unfused_shows, 100);
      }
    }
  }
}

TEST(LinearUnpackRow, IsTwiceTheE2m1ValueTimesHalfTheScale) {
  for (const int group : {16, 32}) {
    Random random(61);
    const std::int64_t n = 113, k = 96;
    const TestMatrix m = e2m1_matrix(n, k, group, random);
    std::int64_t negative = 0;
    for (std::int64_t row = 0; row < n; ++row) {
      std::vector<float> y(k + 1, 7.0F);
      portable().unpack_row(m.packed, row, y.data());
      for (std::int64_t i = 0; i < k; ++i) {
        const float code = m.codes[row * k + i], expected = code * m.scales[row * (k / group) + i / group];
        ASSERT_EQ(bits_of(y[i]), bits_of(expected)) << row << " " << i;
        negative += expected < 0 ? 1 : 0;
      }
      EXPECT_EQ(y[k], 7.0F);
    }
    EXPECT_GT(negative, 1000);
  }
}

TEST(LinearUnpackRow, GivesTheStoredValuesOfADenseMatrix) {
  for (const FloatType type : kTypes) {
    Random random(53);
    const std::int64_t n = 113, k = 37;
    const TestMatrix m = dense_matrix(n, k, type, random);
    for (std::int64_t row = 0; row < n; ++row) {
      std::vector<float> y(k);
      portable().unpack_row(m.packed, row, y.data());
      EXPECT_EQ(std::memcmp(y.data(), &m.values[row * k], k * sizeof(float)), 0) << row;
    }
  }
}

class LinearDenseTable : public linear_test::VectorTable {};

TEST_P(LinearDenseTable, EqualsThePortableBytes) {
  constexpr std::int64_t kRows = 130;
  for (const FloatType type : kTypes) {
    for (const std::int64_t n : {1, 15, 17, 33, 50, 65, 95, 96, 97, 200}) {
      for (const std::int64_t k : {1, 33, 70}) {
        SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << " N " << n << " K " << k);
        Random random(static_cast<std::uint64_t>(n * 100 + k));
        const TestMatrix m = dense_matrix(n, k, type, random);
        const std::int64_t ldx = k + 5, strips = (n + 95) / 96;
        const std::vector<float> x = awkward_rows(kRows, ldx, random);
        const TestOutput full = run(portable(), m, {0, strips}, x, ldx, {0, kRows}, kRows);
        for (const std::int64_t count : {0, 1, 2, 3, 4, 5, 6, 7, 8, 17, 64, 130}) {
          const std::int64_t begin = std::min(count % 5, kRows - count);
          const Range rows{begin, begin + count};
          for (const Range some : {Range{0, strips}, Range{strips - 1, strips}}) {
            const TestOutput expected = only(full, m, some, rows, kRows);
            ASSERT_TRUE(run(table(), m, some, x, ldx, rows, kRows) == expected) << count << " rows";
          }
        }
      }
    }
  }
}

TEST_P(LinearDenseTable, DecodesEveryF16AndBf16PatternAsThePortableOne) {
  for (const FloatType type : {FloatType::f16, FloatType::bf16}) {
    constexpr std::int64_t kColumns = 16, kDepth = 4096;  // 65,536 values: each 16-bit pattern once
    AlignedBuffer bytes(kColumns * kDepth * 2, MemoryPart::scratch);
    for (std::uint32_t i = 0; i < kColumns * kDepth; ++i) bytes.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
    const PackedMatrix w{PackedKind::dense, type, 0, 0, kColumns, kDepth, bytes.data()};
    for (std::int64_t row = 0; row < kColumns; ++row) {
      std::vector<float> expected(kDepth), actual(kDepth);
      portable().unpack_row(w, row, expected.data());
      table().unpack_row(w, row, actual.data());
      ASSERT_EQ(std::memcmp(actual.data(), expected.data(), kDepth * sizeof(float)), 0) << row;
    }
    // The same values one K at a time through the product, for one row and for several.
    const std::vector<float> ones(3, 1.0F);
    for (std::int64_t i = 0; i < kDepth; ++i) {
      const PackedMatrix one{PackedKind::dense, type, 0, 0, kColumns, 1, bytes.data() + i * kColumns * 2};
      float expected[3 * kColumns], actual[3 * kColumns];
      for (const std::int64_t rows : {1, 3}) {
        portable().dense_product(one, {0, 1}, ones.data(), 1, {0, rows}, expected, kColumns);
        table().dense_product(one, {0, 1}, ones.data(), 1, {0, rows}, actual, kColumns);
        ASSERT_EQ(std::memcmp(actual, expected, rows * kColumns * sizeof(float)), 0) << i;
      }
    }
  }
}

TEST_P(LinearDenseTable, UnpacksCodedRowsOfEveryFormatAsThePortableOne) {
  const auto compare = [&](const TestMatrix& m) {
    const std::int64_t k = m.packed.k;
    for (std::int64_t row = 0; row < m.packed.n; ++row) {
      std::vector<float> expected(k + 1, 7.0F), actual(k + 1, 7.0F);
      portable().unpack_row(m.packed, row, expected.data());
      table().unpack_row(m.packed, row, actual.data());
      ASSERT_EQ(std::memcmp(actual.data(), expected.data(), (k + 1) * sizeof(float)), 0)
          << row << " of " << m.packed.bits << "/" << m.packed.group;
    }
  };
  Random random(59);
  for (const FloatType type : kTypes)
    for (const int bits : {2, 3, 4, 5, 6, 8})
      for (const int group : {32, 64, 128}) compare(affine_matrix(200, 3 * group, bits, group, type, random));
  for (const int group : {16, 32}) compare(e2m1_matrix(200, 3 * group, group, random));
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearDenseTable, linear_test::kVectorIsas, linear_test::isa_name);

}  // namespace
}  // namespace outrider
