#include "weights/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "weights/quantized.h"

namespace outrider {
namespace {

constexpr float kLargestF16 = 65504.0f;

float f16_at(const std::uint8_t* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, 2);
  return f32_from_f16(bits);
}

// Scale and bias of one group of 32; codes start at the same place.
struct Group {
  float scale = 0, bias = 0;
};

// Values 0..15 in the low nibbles, 16..31 in the high nibbles.
void nibbles(const std::uint8_t* packed, std::uint8_t* codes) {
  constexpr std::uint64_t kLow = 0x0F0F0F0F0F0F0F0Full;
  for (int half = 0; half < 2; ++half) {  // words, because byte stores may alias the source and stay scalar
    std::uint64_t word;
    std::memcpy(&word, packed + 8 * half, 8);
    const std::uint64_t low = word & kLow, high = word >> 4 & kLow;
    std::memcpy(codes + 8 * half, &low, 8);
    std::memcpy(codes + 16 + 8 * half, &high, 8);
  }
}

// Bit j of the u32 is the fifth bit of value j.
void fifth_bits(const std::uint8_t* high, std::uint8_t* codes) {
  std::uint32_t bits;
  std::memcpy(&bits, high, 4);
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<std::uint8_t>(codes[j] | (bits >> j & 1u) << 4);
}

// One 32-value block of the plain types.
Group plain_block(GgufType type, const std::uint8_t* block, std::uint8_t* codes) {
  const float d = f16_at(block);
  switch (type) {
    case GgufType::Q4_0:
      nibbles(block + 2, codes);
      return {d, -8.0f * d};
    case GgufType::Q4_1:
      nibbles(block + 4, codes);
      return {d, f16_at(block + 2)};
    case GgufType::Q5_0:
      nibbles(block + 6, codes);
      fifth_bits(block + 2, codes);
      return {d, -16.0f * d};
    case GgufType::Q5_1:
      nibbles(block + 8, codes);
      fifth_bits(block + 4, codes);
      return {d, f16_at(block + 2)};
    case GgufType::Q8_0:
      for (int j = 0; j < 32; ++j) codes[j] = block[2 + j] ^ 0x80;  // q + 128
      return {d, -128.0f * d};
    default:
      break;
  }
  OUTRIDER_CHECK(false, "{}", name_of(type));
}

// Sub-block i of 8 of a Q4_K or Q5_K block: d*sc and -dmin*m, with the 6-bit sc and m of the 12 scale bytes.
Group k_group(const std::uint8_t* block, int i) {
  const std::uint8_t* s = block + 4;
  const int sc = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
  const int m = i < 4 ? s[i + 4] & 63 : (s[i + 4] >> 4) | (s[i] >> 6) << 4;
  return {f16_at(block) * static_cast<float>(sc), -(f16_at(block + 2) * static_cast<float>(m))};
}

// 32 bytes hold 64 values: low nibbles are sub-block 2i, high nibbles 2i+1; Q5_K adds bit i of the high-bit bytes.
void k_codes(GgufType type, const std::uint8_t* block, int i, std::uint8_t* codes) {
  const std::uint8_t* low = block + (type == GgufType::Q4_K ? 16 : 48) + i / 2 * 32;
  const std::uint8_t* high = block + 16;
  for (int j = 0; j < 32; ++j) {
    codes[j] = i % 2 == 0 ? low[j] & 15 : low[j] >> 4;
    if (type == GgufType::Q5_K) codes[j] = static_cast<std::uint8_t>(codes[j] | (high[j] >> i & 1) << 4);
  }
}

void q2_k(const std::uint8_t* block, float* y) {
  const std::uint8_t* scales = block;
  const std::uint8_t* codes = block + 16;
  const float d = f16_at(block + 80), dmin = f16_at(block + 82);
  for (int j = 0; j < 256; ++j) {
    const int s = scales[j / 16];
    const int q = codes[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
    y[j] = d * static_cast<float>(s & 15) * static_cast<float>(q) - dmin * static_cast<float>(s >> 4);
  }
}

void q3_k(const std::uint8_t* block, float* y) {
  const std::uint8_t* high = block;
  const std::uint8_t* codes = block + 32;
  const std::uint8_t* s = block + 96;
  const float d = f16_at(block + 108);
  for (int j = 0; j < 256; ++j) {
    const int g = j / 16;  // 6-bit scales: low nibbles of bytes 0..7, then high nibbles; top bits in bytes 8..11
    const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    const int scale = (low | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32;
    const int q =
        (codes[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3) - ((high[j % 32] >> (j / 32) & 1) != 0 ? 0 : 4);
    y[j] = d * static_cast<float>(scale) * static_cast<float>(q);
  }
}

void q6_k(const std::uint8_t* block, float* y) {
  const float d = f16_at(block + 208);
  for (int j = 0; j < 256; ++j) {
    const int half = j / 128, quarter = j % 128 / 32, l = j % 32;
    const std::uint8_t low = block[half * 64 + quarter % 2 * 32 + l];
    const std::uint8_t high = block[128 + half * 32 + l];
    const int q = ((quarter < 2 ? low & 15 : low >> 4) | (high >> (2 * quarter) & 3) << 4) - 32;
    const auto scale = static_cast<std::int8_t>(block[192 + j / 16]);
    y[j] = d * static_cast<float>(scale) * static_cast<float>(q);
  }
}

bool put(std::byte* to, FloatType type, std::size_t at, float value) {
  store_float(to + at * size_of(type), type, value);
  return std::isfinite(load_float(to + at * size_of(type), type));
}

bool is_k_group_of_16(GgufType type) {
  return type == GgufType::Q2_K || type == GgufType::Q3_K || type == GgufType::Q6_K;
}

bool quantize_again(GgufType type, const std::byte* row, FloatType scale_type, int bits, std::span<std::uint8_t> codes,
                    std::byte* scales, std::byte* biases) {
  std::vector<float> values(codes.size());
  dequantize_k_row(type, row, values);
  if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) return false;
  for (std::size_t g = 0; g < codes.size() / kGgufGroup; ++g) {
    const AffineGroup group =
        quantize_affine(std::span(values).subspan(g * kGgufGroup, kGgufGroup), bits, &codes[g * kGgufGroup]);
    if (!put(scales, scale_type, g, group.scale) || !put(biases, scale_type, g, group.bias)) return false;
  }
  return true;
}

}  // namespace

bool is_float(GgufType type) { return type == GgufType::F32 || type == GgufType::F16 || type == GgufType::BF16; }

FloatType float_type_of(GgufType type) {
  return type == GgufType::F32 ? FloatType::f32 : type == GgufType::F16 ? FloatType::f16 : FloatType::bf16;
}

int affine_bits(GgufType type, const GgufImport& import) {
  switch (type) {
    case GgufType::Q4_0:
    case GgufType::Q4_1:
    case GgufType::Q4_K:
      return 4;
    case GgufType::Q5_0:
    case GgufType::Q5_1:
    case GgufType::Q5_K:
      return 5;
    case GgufType::Q2_K:
    case GgufType::Q3_K:
      return import.requantize_bits;
    default:
      return 8;
  }
}

FloatType scale_type_of(GgufType type, std::span<const std::byte> tensor, const GgufImport& import) {
  if (type == GgufType::Q4_1 || type == GgufType::Q5_1) return FloatType::f16;  // both are f16 in the file
  const auto* block = reinterpret_cast<const std::uint8_t*>(tensor.data());
  const std::size_t bytes = static_cast<std::size_t>(block_of(type).bytes);
  const std::size_t blocks = tensor.size() / bytes;
  if (type == GgufType::Q4_K || type == GgufType::Q5_K) {
    if (import.scales == ScaleStorage::exact) return FloatType::f32;
    for (std::size_t b = 0; b < blocks; ++b)
      for (int i = 0; i < 8; ++i) {
        const Group group = k_group(block + b * bytes, i);
        if (std::fabs(group.scale) > kLargestF16 || std::fabs(group.bias) > kLargestF16) return FloatType::f32;
      }
    return FloatType::f16;
  }
  // Quantized again: weights beyond f16 do not occur, and one that does is refused when its row is read.
  if (is_k_group_of_16(type)) return import.scales == ScaleStorage::exact ? FloatType::f32 : FloatType::f16;
  const float factor = type == GgufType::Q4_0 ? 8.0f : type == GgufType::Q5_0 ? 16.0f : 128.0f;
  for (std::size_t b = 0; b < blocks; ++b)
    if (std::fabs(f16_at(block + b * bytes)) * factor > kLargestF16) return FloatType::f32;
  return FloatType::f16;
}

bool decode_row(GgufType type, const std::byte* row, FloatType scale_type, int bits, std::span<std::uint8_t> codes,
                std::byte* scales, std::byte* biases) {
  if (is_k_group_of_16(type)) return quantize_again(type, row, scale_type, bits, codes, scales, biases);
  const auto* block = reinterpret_cast<const std::uint8_t*>(row);
  const GgufBlock form = block_of(type);
  const std::size_t groups = codes.size() / kGgufGroup;
  const std::size_t per_block = static_cast<std::size_t>(form.values) / kGgufGroup;
  bool finite = true;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::uint8_t* at = block + g / per_block * static_cast<std::size_t>(form.bytes);
    Group group;
    if (form.values == kGgufGroup) {
      group = plain_block(type, at, &codes[g * kGgufGroup]);
    } else {
      const int i = static_cast<int>(g % per_block);
      group = k_group(at, i);
      k_codes(type, at, i, &codes[g * kGgufGroup]);
    }
    finite = put(scales, scale_type, g, group.scale) && finite;
    finite = put(biases, scale_type, g, group.bias) && finite;
  }
  return finite;
}

void decode_mxfp4_row(const std::byte* row, std::span<std::uint8_t> codes, std::uint8_t* scales) {
  const auto* block = reinterpret_cast<const std::uint8_t*>(row);
  for (std::size_t g = 0; g < codes.size() / kGgufGroup; ++g, block += block_of(GgufType::MXFP4).bytes) {
    scales[g] = block[0];
    nibbles(block + 1, &codes[g * kGgufGroup]);
  }
}

void dequantize_k_row(GgufType type, const std::byte* row, std::span<float> values) {
  const auto* block = reinterpret_cast<const std::uint8_t*>(row);
  for (std::size_t at = 0; at < values.size(); at += 256, block += block_of(type).bytes) {
    switch (type) {
      case GgufType::Q2_K:
        q2_k(block, &values[at]);
        break;
      case GgufType::Q3_K:
        q3_k(block, &values[at]);
        break;
      case GgufType::Q6_K:
        q6_k(block, &values[at]);
        break;
      default:
        OUTRIDER_CHECK(false, "{}", name_of(type));
    }
  }
}

}  // namespace outrider
