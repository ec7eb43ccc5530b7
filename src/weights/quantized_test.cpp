#include "weights/quantized.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "weights/pack.h"
#include "weights/safetensors.h"

namespace outrider {
namespace {

using Codes = std::vector<std::uint8_t>;

std::string hex(const std::vector<std::byte>& bytes) {
  std::string out;
  for (const std::byte b : bytes) out += fmt::format("{}{:02x}", out.empty() ? "" : " ", static_cast<int>(b));
  return out;
}

std::string packed_hex(const Codes& codes, int bits) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(code_bytes(static_cast<std::int64_t>(codes.size()), bits)));
  pack_codes(codes, bits, bytes.data());
  Codes back(codes.size());
  unpack_codes(bytes.data(), bits, back);
  EXPECT_EQ(back, codes);
  return hex(bytes);
}

TEST(Codes, AreALowestBitFirstStream) {
  EXPECT_EQ(packed_hex({0, 1, 2, 3}, 2), "e4");
  EXPECT_EQ(packed_hex({0, 1, 2, 3, 4, 5, 6, 7}, 3), "88 c6 fa");
  EXPECT_EQ(packed_hex({1, 2, 3, 4, 5, 6, 7, 8}, 4), "21 43 65 87");
  EXPECT_EQ(packed_hex({0, 1, 2, 3, 4, 5, 6, 7}, 5), "20 88 41 8a 39");
  EXPECT_EQ(packed_hex({31, 0, 16, 1, 8, 2, 4, 30}, 5), "1f c0 80 04 f1");
  EXPECT_EQ(packed_hex({1, 2, 3, 63}, 6), "81 30 fc");
  EXPECT_EQ(packed_hex({0, 127, 128, 255}, 8), "00 7f 80 ff");
  EXPECT_EQ(packed_hex({1, 0, 1, 1, 0, 0, 0, 1}, 1), "8d");
}

TEST(Codes, RoundTripAtEveryWidthAndLength) {
  for (int bits = 1; bits <= 8; ++bits) EXPECT_EQ(packed_hex({}, bits), "");
  rc::check([](const Codes& raw) {
    const int bits = *rc::gen::inRange(1, 9);
    Codes codes = raw;
    for (auto& code : codes) code &= static_cast<std::uint8_t>((1 << bits) - 1);
    packed_hex(codes, bits);
  });
}

TEST(AffineQuantizer, GivesTheVectorOfTheSpecification) {
  std::vector<float> w(32);
  for (int i = 0; i < 32; ++i) w[i] = static_cast<float>(i - 10) / 16.0f;
  Codes codes(32);
  const AffineGroup group = quantize_affine(w, 4, codes.data());
  EXPECT_FLOAT_EQ(group.scale, -0.13125f);
  EXPECT_EQ(f32_from_bf16(bf16_from_f32(group.scale)), -0.130859375f);
  EXPECT_EQ(group.bias, 1.3125f);
  EXPECT_EQ(codes, (Codes{15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 10, 9, 9, 8, 8,
                          7,  7,  6,  6,  5,  5,  4,  4,  3,  3,  2,  2,  1, 1, 0, 0}));
}

std::vector<float> floats(const SafetensorsFile& file, const std::string& name, FloatType type) {
  const auto bytes = file.bytes(*file.find(name));
  std::vector<float> out(bytes.size() / size_of(type));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = load_float(bytes.data() + i * size_of(type), type);
  return out;
}

const SafetensorsFile& mlx() {
  static const SafetensorsFile file(OUTRIDER_SOURCE_DIR "/oracles/goldens/weights/mlx.safetensors");
  return file;
}

// Codes, scales and biases are MLX's own, in float32 and with bf16 scales rounded after the codes were made.
TEST(AffineQuantizer, EqualsMlxForEveryWidthAndGroup) {
  for (const FloatType type : {FloatType::f32, FloatType::bf16}) {
    const std::string prefix = name_of(type);
    const auto w = floats(mlx(), prefix + ".w", type);
    for (const int bits : {2, 3, 4, 5, 6, 8})
      for (const std::size_t group : {32u, 64u, 128u}) {
        const std::string key = fmt::format("{}.b{}.g{}", prefix, bits, group);
        const auto scales = floats(mlx(), key + ".scales", type), biases = floats(mlx(), key + ".biases", type);
        const auto packed = mlx().bytes(*mlx().find(key + ".weight"));
        Codes expected(w.size()), codes(w.size());
        unpack_codes(packed.data(), bits, expected);
        for (std::size_t g = 0; g < w.size() / group; ++g) {
          const AffineGroup made = quantize_affine(std::span(w).subspan(g * group, group), bits, &codes[g * group]);
          std::byte stored[4];
          store_float(stored, type, made.scale);
          EXPECT_EQ(load_float(stored, type), scales[g]) << key << " group " << g;
          store_float(stored, type, made.bias);
          EXPECT_EQ(load_float(stored, type), biases[g]) << key << " group " << g;
        }
        EXPECT_EQ(codes, expected) << key;
      }
  }
}

TEST(AffineDecoder, EqualsMlxForEveryWidthAndGroup) {
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int group : {32, 64, 128}) {
      const std::string key = fmt::format("f32.b{}.g{}", bits, group);
      const auto bytes = [&](const char* part) { return mlx().bytes(*mlx().find(key + part)).data(); };
      const auto expected = floats(mlx(), key + ".values", FloatType::f32);
      const std::int64_t k = 256, n = 6;
      const MatrixRows rows = rows_of(
          AffineMatrix{bits, group, FloatType::f32, n, k, bytes(".weight"), bytes(".scales"), bytes(".biases")});
      std::vector<float> row(static_cast<std::size_t>(k));
      for (std::int64_t r = 0; r < n; ++r) {
        read_row_f32(rows, r, row);
        for (std::int64_t j = 0; j < k; ++j) {
          // Ours is one fma, MLX's a product and a sum: they may differ by the rounding of the product.
          const float want = expected[static_cast<std::size_t>(r * k + j)];
          ASSERT_NEAR(row[static_cast<std::size_t>(j)], want, 1e-6f * (std::fabs(want) + 8.0f))
              << key << " " << r << "," << j;
        }
      }
    }
}

// The e2m1 modes as panels and as f32 rows, mxfp8 as the floats it is decoded to: MLX's own values, exactly.
TEST(FpDecoder, EqualsMlxInEveryModeToTheBit) {
  constexpr std::int64_t kRows = 6, kWidth = 256;
  for (const std::string key : {"mxfp4", "nvfp4", "nvfp4_global"}) {
    E2m1Matrix m{{key == "mxfp4" ? Fp4Mode::mxfp4 : Fp4Mode::nvfp4, std::nullopt}, kRows, kWidth};
    if (key == "nvfp4_global") m.fp4.global_scale = floats(mlx(), key + ".global_scale", FloatType::f32)[0];
    m.weight = mlx().bytes(*mlx().find(key + ".weight")).data();
    m.scales = mlx().bytes(*mlx().find(key + ".scales")).data();
    const auto expected = floats(mlx(), key + ".values", FloatType::f32);
    const PackedWeight packed = pack(rows_of(m), Precision::packed, {});
    ASSERT_EQ(packed.view.kind, PackedKind::e2m1);
    ASSERT_EQ(packed.view.group, key == "mxfp4" ? 32 : 16);
    const Unpacked back = unpack(packed.view), exact = unpack(pack(rows_of(m), Precision::f32, {}).view);
    const auto group = static_cast<std::size_t>(packed.view.group);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(static_cast<float>(kE2m1Doubled[back.codes[i]]) * back.scales[i / group], expected[i])
          << key << " " << i;
      ASSERT_EQ(exact.values[i], expected[i]) << key << " " << i;
    }
  }
  const auto expected = floats(mlx(), "mxfp8.values", FloatType::f32);
  std::vector<float> values(expected.size());
  dequantize_mxfp8(mlx().bytes(*mlx().find("mxfp8.weight")).data(), mlx().bytes(*mlx().find("mxfp8.scales")).data(),
                   values);
  EXPECT_EQ(values, expected);
}

TEST(FpDecoder, KnowsTheEdgesOfItsFormats) {
  EXPECT_EQ(f32_from_e8m0(0), 0x1p-127f);
  EXPECT_EQ(f32_from_e8m0(1), 0x1p-126f);
  EXPECT_EQ(f32_from_e8m0(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(f32_from_e8m0(255)));
  EXPECT_EQ(f32_from_e4m3(0x7e), 448.0f);
  EXPECT_EQ(f32_from_e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(f32_from_e4m3(0x88), -0x1p-6f);
  EXPECT_TRUE(std::isnan(f32_from_e4m3(0x7f)) && std::isnan(f32_from_e4m3(0xff)));
  const Fp4Scales mxfp4{Fp4Mode::mxfp4, std::nullopt}, nvfp4{Fp4Mode::nvfp4, std::nullopt},
      half{Fp4Mode::nvfp4, 1344.0f}, none{Fp4Mode::nvfp4, 0.0f};
  EXPECT_EQ(mxfp4.halved(0), 0x1p-128f);  // a subnormal, not zero
  EXPECT_EQ(mxfp4.halved(1), 0x1p-127f);
  EXPECT_EQ(mxfp4.halved(254), 0x1p126f);
  EXPECT_EQ(nvfp4.halved(0x38), 0.5f);
  EXPECT_EQ(nvfp4.halved(0xb8), -0.5f);
  EXPECT_EQ(half.halved(0x38), 0.25f);
  EXPECT_EQ(none.halved(0x38), 0.0f);  // the scale of an all-zero matrix, not a missing one
}

TEST(FpDecoder, RefusesScalesThatAreNoNumberOrTakeACodeBeyondF32) {
  const auto bad = [](Fp4Mode mode, std::uint8_t code, std::uint8_t scale) {
    Codes codes(64, 1);
    codes[37] = code;
    const auto group = static_cast<std::size_t>(group_of(mode));
    Codes scales(64 / group, mode == Fp4Mode::mxfp4 ? 127 : 0x38);
    scales[37 / group] = scale;
    return group_without_values({mode, std::nullopt}, codes, scales.data());
  };
  EXPECT_EQ(bad(Fp4Mode::mxfp4, 0, 255), 1u);
  EXPECT_EQ(bad(Fp4Mode::mxfp4, 7, 252), std::nullopt);
  EXPECT_EQ(bad(Fp4Mode::mxfp4, 7, 253), 1u);
  EXPECT_EQ(bad(Fp4Mode::mxfp4, 13, 253), std::nullopt);  // -3 * 2^126
  EXPECT_EQ(bad(Fp4Mode::mxfp4, 14, 253), 1u);            // -4 * 2^126 = -2^128 is beyond f32
  EXPECT_EQ(bad(Fp4Mode::nvfp4, 0, 0x7f), 2u);
  EXPECT_EQ(bad(Fp4Mode::nvfp4, 15, 0xff), 2u);
  EXPECT_EQ(bad(Fp4Mode::nvfp4, 15, 0x7e), std::nullopt);
}

TEST(HalfFloats, RoundHalfToEvenAndRoundTripEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float f = f32_from_f16(half), b = f32_from_bf16(half);
    if (!std::isnan(f)) {
      ASSERT_EQ(f16_from_f32(f), half);
    }
    if (!std::isnan(b)) {
      ASSERT_EQ(bf16_from_f32(b), half);
    }
    if (std::isnan(f)) {
      ASSERT_TRUE(std::isnan(f32_from_f16(f16_from_f32(f))));
    }
    if (std::isnan(b)) {
      ASSERT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(b))));
    }
    // The middle between two neighbours goes to the even one.
    if ((half & 0x7fff) >= 0x7bff) continue;
    const float middle = (f + f32_from_f16(static_cast<std::uint16_t>(half + 1))) / 2;
    ASSERT_EQ(f16_from_f32(middle), half % 2 == 0 ? half : half + 1) << bits;
  }
  EXPECT_EQ(f16_from_f32(65519.996f), 0x7bff);
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_f32(-0.0f), 0x8000);
  EXPECT_EQ(f16_from_f32(0x1p-25f), 0x0000);
  EXPECT_EQ(f16_from_f32(0x1.000002p-25f), 0x0001);
}

}  // namespace
}  // namespace outrider
