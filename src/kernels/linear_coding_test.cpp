// Coding of inputs (numerics.md section 2): the portable table against the text, the others against the portable one.
#ifdef __x86_64__
#include "kernels/cpu/linear_amx.h"
#endif
#include "kernels/linear_test_data.h"

namespace outrider {
namespace {

using linear_test::awkward_rows;
using linear_test::bits_of;
using linear_test::fnv1a;
using linear_test::Random;
using linear_test::TestCodes;

constexpr std::int64_t kWidth = 256;  // two groups of 128

struct CodedGroup {
  std::vector<std::int16_t> codes;
  float s = 0.0F;
  float sum = 0.0F;
  std::uint32_t fault = 0;
};

// One group of 32: `x` and then zeros.
CodedGroup code(const KernelTable& table, std::vector<float> x) {
  x.resize(32);
  TestCodes out(1, 32, 32);
  table.code_rows(x.data(), 32, 32, 32, {0, 1}, out.coded, out.faults.data());
  return {{out.coded.codes, out.coded.codes + 32}, out.coded.scales[0], out.coded.scales[1], out.faults[0]};
}

const KernelTable& portable() { return *kernel_table(Isa::portable); }

TEST(LinearCoding, RoundsHalvesToEven) {
  const CodedGroup group = code(portable(), {32767.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 3.4999998F});
  const std::vector<std::int16_t> expected = {32767, 0, 2, 2, 0, -2, -2, 3};
  EXPECT_EQ(std::vector<std::int16_t>(group.codes.begin(), group.codes.begin() + 8), expected);
  EXPECT_EQ(group.s, 1.0F);
  EXPECT_EQ(group.sum, 32767.0F - 0 + 2 + 2 - 2 - 2 + 3);
}

TEST(LinearCoding, MultipliesByTheRoundedReciprocalAndNeverDividesByTheScale) {
  // a, x, rint(x*(32767/a)); the last column is rint(x/(a/32767)), the code a division would give.
  struct Case {
    std::uint32_t a, x;
    std::int16_t code, divided;
  };
  const Case cases[] = {
      {0x4146287b, 0xc09c5885, -12926, -12927}, {0x3e721f06, 0xbd8bf55b, -9470, -9471},
      {0x3fa6258a, 0x3f71b2a2, 23833, 23834},   {0x4000d686, 0xbfe698bf, -29324, -29323},
      {0x403b7048, 0xc022c0a0, -28451, -28452}, {0x3f7f91e0, 0xbf37875b, -23530, -23531},
  };
  for (const Case& c : cases) {
    const auto a = std::bit_cast<float>(c.a), x = std::bit_cast<float>(c.x);
    EXPECT_EQ(std::rint(x / (a / 32767.0F)), c.divided) << "the case distinguishes nothing";
    EXPECT_NE(c.code, c.divided);
    const CodedGroup group = code(portable(), {a, x});
    EXPECT_EQ(group.codes[0], 32767);
    EXPECT_EQ(group.codes[1], c.code);
    EXPECT_EQ(group.s, a / 32767.0F);
    EXPECT_EQ(group.sum, 32767.0F + static_cast<float>(c.code));
  }
}

TEST(LinearCoding, DividesTheLargestInputForTheScale) {
  // {a, a/32767}; a*(1/32767) gives the float below.
  for (const auto& [a, s] :
       {std::pair{0x3f803f00U, 0x38004001U}, {0x3fbebf3eU, 0x383ec0bcU}, {0x3fed3fd4U, 0x386d41afU}}) {
    EXPECT_EQ(bits_of(code(portable(), {0.25F, std::bit_cast<float>(a)}).s), s);
  }
}

TEST(LinearCoding, CodesZerosBelowTwoToTheMinusHundredAndNotAtIt) {
  const CodedGroup at = code(portable(), {-0x1p-100F, 0x1p-101F});
  EXPECT_EQ(at.codes[0], -32767);
  EXPECT_EQ(at.codes[1], 16384);  // 16383.5, half to even
  EXPECT_EQ(at.s, 0x1p-100F / 32767.0F);
  const CodedGroup below = code(portable(), {std::nextafter(0x1p-100F, 0.0F), 0x1p-101F});
  EXPECT_EQ(below.codes, std::vector<std::int16_t>(32, 0));
  EXPECT_EQ(bits_of(below.s), 0U);
  EXPECT_EQ(bits_of(below.sum), 0U);
  EXPECT_EQ(below.fault, 0U);
}

TEST(LinearCoding, MarksGroupsThatHoldInfinityOrNan) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {inf, -inf, nan, -nan}) {
    const CodedGroup group = code(portable(), {1.0F, bad, 3.0F});
    EXPECT_EQ(group.codes, std::vector<std::int16_t>(32, 0));
    EXPECT_EQ(bits_of(group.s), 0x7fc00000U);
    EXPECT_EQ(bits_of(group.sum), 0U);
    EXPECT_EQ(group.fault, kFaultNonFinite);
  }
  const CodedGroup largest = code(portable(), {std::numeric_limits<float>::max(), -1e38F});
  EXPECT_EQ(largest.codes[0], 32767);
  EXPECT_EQ(largest.fault, 0U);
}

TEST(LinearCoding, KeepsFaultBitsThatWereSetAndLayoutAndNeighbours) {
  for (const int group : {16, 64}) {
    Random random(5);
    const std::vector<float> x = awkward_rows(12, kWidth, random);
    TestCodes all(12, kWidth, group);
    std::vector<std::uint32_t> faults(12, 8U);
    portable().code_rows(x.data(), kWidth, kWidth, group, {0, 12}, all.coded, faults.data());
    for (std::int64_t r = 0; r < 12; ++r) {
      EXPECT_EQ(faults[r], r >= 7 && r <= 9 ? 8U | kFaultNonFinite : 8U);
      for (std::int64_t g = 0; g < kWidth / group; ++g) {
        TestCodes one(1, group, group);
        portable().code_rows(x.data() + r * kWidth + g * group, group, group, group, {0, 1}, one.coded,
                             one.faults.data());
        const std::int64_t at = g * 12 + r;
        EXPECT_EQ(std::memcmp(one.coded.codes, all.coded.codes + at * group, group * sizeof(std::int16_t)), 0);
        EXPECT_EQ(std::memcmp(one.coded.scales, all.coded.scales + at * 2, 8), 0);
      }
    }
  }
}

TEST(LinearCoding, HasTheRecordedBytes) {
  Random random(11);
  const std::vector<float> x = awkward_rows(48, kWidth, random);
  std::uint64_t hash = fnv1a(x.data(), x.size() * sizeof(float));
  for (const int group : {32, 64, 128}) {
    TestCodes out(48, kWidth, group);
    portable().code_rows(x.data(), kWidth, kWidth, group, {0, 48}, out.coded, out.faults.data());
    hash = fnv1a(out.codes.data(), out.codes.size(), hash);
    hash = fnv1a(out.scales.data(), out.scales.size(), hash);
  }
  EXPECT_EQ(hash, 4903173789832829143U);
}

// The integers behind byte planes, after numerics.md section 3: G high bytes, then G low ones, each eight in the order
// 0, 4, 1, 5, 2, 6, 3, 7.
std::vector<std::int16_t> integers_of_planes(const std::int16_t* codes, std::int64_t all, int group) {
  constexpr int kOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};
  std::vector<std::int16_t> integers(static_cast<std::size_t>(all));
  const auto* bytes = reinterpret_cast<const unsigned char*>(codes);
  for (std::int64_t at = 0; at < all; at += group, bytes += 2 * group) {
    for (int i = 0; i < group; ++i) {
      integers[at + i / 8 * 8 + kOrder[i % 8]] = static_cast<std::int16_t>(bytes[i] << 8 | bytes[group + i]);
    }
  }
  return integers;
}

std::vector<std::int16_t> integers_in_order(const CodedRows& x, std::int64_t k) {
  return {x.codes, x.codes + x.rows * k};
}

class LinearCodingTable : public linear_test::VectorTable {
 protected:
  // The codes of a whole buffer in the order of the portable table.
  std::vector<std::int16_t> integers(const TestCodes& x, std::int64_t k, int group) const {
#ifdef __x86_64__
    if (table().isa == Isa::amx && linear::amx::reads_planes(x.coded.rows, group))
      return integers_of_planes(x.coded.codes, x.coded.rows * k, group);
#endif
    return integers_in_order(x.coded, k);
  }
};

TEST_P(LinearCodingTable, EqualsThePortableBytes) {
  Random random(23);
  constexpr std::int64_t kRows = 60;
  constexpr std::int64_t kLd = kWidth + 3;  // unaligned rows
  std::vector<float> x = awkward_rows(kRows, kLd, random);
  // Rows 0 and 12: the largest input of a group is 2^-100, or just below.
  for (std::int64_t i = 0; i < kWidth; ++i) {
    x[i] = i % 32 == 5 ? -0x1p-100F : 0x1p-101F;
    x[12 * kLd + i] = i % 32 == 5 ? -0x1.fffffep-101F : 0x1p-101F;
  }
  const std::vector<std::uint32_t> before(kRows, 8U);  // bits set by an earlier layer stay
  for (const int group : {16, 32, 64, 128}) {
    for (const Range rows : {Range{0, kRows}, Range{0, 1}, Range{3, 20}, Range{59, 60}, Range{7, 7}}) {
      TestCodes expected(kRows, kWidth, group), actual(kRows, kWidth, group);
      expected.faults = actual.faults = before;
      portable().code_rows(x.data(), kLd, kWidth, group, rows, expected.coded, expected.faults.data());
      table().code_rows(x.data(), kLd, kWidth, group, rows, actual.coded, actual.faults.data());
      EXPECT_EQ(integers(actual, kWidth, group), integers_in_order(expected.coded, kWidth)) << group;
      EXPECT_EQ(std::memcmp(actual.scales.data(), expected.scales.data(), expected.scales.size()), 0) << group;
      EXPECT_EQ(actual.faults, expected.faults);
    }
  }
}

TEST_P(LinearCodingTable, RoundsAndMultipliesAsThePortableOneForManyMagnitudes) {
  Random random(29);
  for (const std::int64_t rows : {1, 20}) {  // integers and, with AMX, byte planes
    for (int round = 0; round < 2000 / rows; ++round) {
      std::vector<float> x(static_cast<std::size_t>(rows * 128));
      const int exponent = static_cast<int>(random.below(220)) - 105;
      for (float& value : x) value = std::ldexp(random.signed_unit(), exponent);
      for (const int group : {16, 128}) {
        TestCodes expected(rows, 128, group), actual(rows, 128, group);
        portable().code_rows(x.data(), 128, 128, group, {0, rows}, expected.coded, expected.faults.data());
        table().code_rows(x.data(), 128, 128, group, {0, rows}, actual.coded, actual.faults.data());
        ASSERT_EQ(integers(actual, 128, group), integers_in_order(expected.coded, 128)) << exponent;
        ASSERT_EQ(std::memcmp(actual.scales.data(), expected.scales.data(), expected.scales.size()), 0) << exponent;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearCodingTable, linear_test::kVectorIsas, linear_test::isa_name);

}  // namespace
}  // namespace outrider
