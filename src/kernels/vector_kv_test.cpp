// f16 and the rows of the KV cache (numerics.md section 5): the portable table against the text, the others against its
// bytes.
#include "kernels/vector_test_data.h"

namespace outrider {
namespace {

using namespace vector_test;  // NOLINT: the data of these tests

class VectorKvRows : public VectorTable {};
INSTANTIATE_TEST_SUITE_P(Isas, VectorKvRows, kVectorIsas, isa_name);

const KernelTable& portable() { return portable_table_under_test(); }

// --- f16 ---

TEST(Half, ReadsEveryPattern) {
  for (std::uint32_t b = 0; b < 0x10000U; ++b) {
    const auto half = static_cast<std::uint16_t>(b);
    const float value = f32_from_f16(half);
    if ((b & 0x7fffU) > 0x7c00U) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const float expected = (b & 0x7fffU) < 0x7c00U ? linear_test::stored_f16(half).value : kInfinity;
    EXPECT_EQ(std::fabs(value), std::fabs(expected)) << b;
    EXPECT_EQ(std::signbit(value), (b & 0x8000U) != 0);
    EXPECT_EQ(f16_from_f32(value), half);
  }
}

TEST(Half, RoundsHalfToEvenBetweenAllNeighbours) {
  for (std::uint32_t b = 0; b < 0x7bffU; ++b) {
    const float low = f32_from_f16(static_cast<std::uint16_t>(b));
    const float high = f32_from_f16(static_cast<std::uint16_t>(b + 1));
    const float middle = low + (high - low) / 2;  // exact
    EXPECT_EQ(f16_from_f32(middle), b + (b & 1U)) << b;
    EXPECT_EQ(f16_from_f32(std::nextafter(middle, 0.0F)), b) << b;
    EXPECT_EQ(f16_from_f32(std::nextafter(middle, kInfinity)), b + 1) << b;
    EXPECT_EQ(f16_from_f32(-middle), 0x8000U | (b + (b & 1U))) << b;
  }
  EXPECT_EQ(f16_from_f32(65519.99F), 0x7bffU);
  EXPECT_EQ(f16_from_f32(65520.0F), 0x7c00U);
  EXPECT_EQ(f16_from_f32(0x1p-26F), 0U);
  EXPECT_EQ(f16_from_f32(0x1p-149F), 0U);
}

// --- store_kv ---

struct Stored {
  std::vector<std::byte> k, v;
  std::int64_t clamps = 0;
  std::uint32_t fault = 0;
};

Stored store(const KernelTable& table, const std::vector<float>& k, const std::vector<float>& v, std::int64_t j,
             FloatType type) {
  const std::size_t bytes = k.size() * 64 * size_of(type);
  Stored out{std::vector<std::byte>(bytes, std::byte{0x5a}), std::vector<std::byte>(bytes, std::byte{0x5a}), 0, 0};
  out.clamps = table.store_kv(k.data(), v.data(), static_cast<std::int64_t>(k.size()), j, type, out.k.data(),
                              out.v.data(), &out.fault);
  return out;
}

TEST(StoreKv, PutsKeysByDimAndValuesByPosition) {
  Random random(1);
  for (FloatType type : {FloatType::f16, FloatType::f32}) {
    const std::vector<float> k = bells(20, random), v = bells(20, random);
    const Stored out = store(portable(), k, v, 37, type);
    const Stored untouched = store(portable(), {}, {}, 0, type);
    EXPECT_EQ(untouched.fault, 0U);
    float margin;
    std::memset(&margin, 0x5a, 4);
    if (type == FloatType::f16) margin = f32_from_f16(0x5a5aU);
    for (std::size_t d = 0; d < 20; ++d) {
      for (std::size_t j = 0; j < 64; ++j) {
        const float key = type == FloatType::f16 ? f32_from_f16(f16_from_f32(k[d])) : k[d];
        const float value = type == FloatType::f16 ? f32_from_f16(f16_from_f32(v[d])) : v[d];
        EXPECT_EQ(element(out.k, type, d * 64 + j), j == 37 ? key : margin);
        EXPECT_EQ(element(out.v, type, j * 20 + d), j == 37 ? value : margin);
      }
    }
    EXPECT_EQ(out.clamps, 0);
    EXPECT_EQ(out.fault, 0U);
  }
}

TEST(StoreKv, ClampsAndCountsWhatF16CannotHold) {
  const std::vector<float> k = {65504.0F, 65519.0F, 65520.0F, -1e9F}, v = {-65520.0F, 0x1p-24F, 0x1p-25F, 3e38F};
  const Stored out = store(portable(), k, v, 0, FloatType::f16);
  EXPECT_EQ(out.clamps, 4);
  EXPECT_EQ(out.fault, 0U);
  const float keys[] = {65504.0F, 65504.0F, 65504.0F, -65504.0F}, values[] = {-65504.0F, 0x1p-24F, 0.0F, 65504.0F};
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_EQ(element(out.k, FloatType::f16, d * 64), keys[d]);
    EXPECT_EQ(element(out.v, FloatType::f16, d), values[d]);
  }
  EXPECT_EQ(store(portable(), k, v, 0, FloatType::f32).clamps, 0);
}

TEST(StoreKv, FlagsWhatIsNotFinite) {
  for (FloatType type : {FloatType::f16, FloatType::f32}) {
    for (float bad : {kInfinity, -kInfinity, kNaN}) {
      EXPECT_EQ(store(portable(), {1.0F, bad}, {1.0F, 1.0F}, 5, type).fault, kFaultNonFinite);
      const Stored out = store(portable(), {1.0F, 1.0F}, {bad, 1.0F}, 5, type);
      EXPECT_EQ(out.fault, kFaultNonFinite);
      EXPECT_EQ(out.clamps, 0) << "a fault is no clamp";
    }
  }
}

TEST_P(VectorKvRows, StoresThePortableBytes) {
  Random random(2);
  for (FloatType type : {FloatType::f16, FloatType::f32}) {
    for (std::size_t width : {1U, 3U, 7U, 8U, 9U, 15U, 16U, 17U, 18U, 64U, 80U, 128U, 4096U}) {
      for (Kind kind : kKinds) {
        std::vector<float> k = vector_of(kind, width, random), v = vector_of(kind, width, random);
        for (float& x : k) x = random.below(4) == 0 ? std::ldexp(x, static_cast<int>(random.below(48)) - 30) : x;
        for (float& x : v) x = random.below(4) == 0 ? std::ldexp(x, static_cast<int>(random.below(48)) - 30) : x;
        const std::int64_t j = random.below(64);
        const Stored expected = store(portable(), k, v, j, type), got = store(table(), k, v, j, type);
        EXPECT_EQ(expected.clamps, got.clamps);
        EXPECT_EQ(expected.fault, got.fault);
        ASSERT_EQ(std::memcmp(expected.k.data(), got.k.data(), got.k.size()), 0) << width;
        ASSERT_EQ(std::memcmp(expected.v.data(), got.v.data(), got.v.size()), 0) << width;
      }
    }
  }
}

}  // namespace
}  // namespace outrider
