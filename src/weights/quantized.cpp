#include "weights/quantized.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace outrider {
namespace {

// Eight codes are exactly `bits` bytes.
std::uint64_t load_bits(const std::byte* from, int bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, static_cast<std::size_t>(bytes));
  return word;
}

template <int kBits>
void unpack(const std::byte* packed, std::span<std::uint8_t> codes) {
  constexpr std::uint64_t kMask = (1u << kBits) - 1;
  const std::size_t whole = codes.size() / 8 * 8;
  std::size_t j = 0;
  for (; j < whole; j += 8, packed += kBits) {
    const std::uint64_t word = load_bits(packed, kBits);
    for (int e = 0; e < 8; ++e) codes[j + e] = static_cast<std::uint8_t>(word >> (kBits * e) & kMask);
  }
  if (j == codes.size()) return;
  const std::uint64_t word = load_bits(packed, static_cast<int>(code_bytes(codes.size() - j, kBits)));
  for (int e = 0; j + e < codes.size(); ++e) codes[j + e] = static_cast<std::uint8_t>(word >> (kBits * e) & kMask);
}

// The nibbles of a u64 of 8 bytes spread to one byte each.
void unpack4(const std::byte* packed, std::span<std::uint8_t> codes) {
  const std::size_t pairs = codes.size() / 2;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(packed);
  for (std::size_t j = 0; j < pairs; ++j) {
    codes[2 * j] = bytes[j] & 15;
    codes[2 * j + 1] = bytes[j] >> 4;
  }
  if (codes.size() % 2 != 0) codes.back() = bytes[pairs] & 15;
}

}  // namespace

void unpack_codes(const std::byte* packed, int bits, std::span<std::uint8_t> codes) {
  switch (bits) {
    case 1:
      return unpack<1>(packed, codes);
    case 2:
      return unpack<2>(packed, codes);
    case 3:
      return unpack<3>(packed, codes);
    case 4:
      return unpack4(packed, codes);
    case 5:
      return unpack<5>(packed, codes);
    case 6:
      return unpack<6>(packed, codes);
    case 7:
      return unpack<7>(packed, codes);
    case 8:
      std::copy_n(reinterpret_cast<const std::uint8_t*>(packed), codes.size(), codes.begin());  // none is allowed too
      return;
    default:
      OUTRIDER_CHECK(false, "{} bits", bits);
  }
}

void pack_codes(std::span<const std::uint8_t> codes, int bits, std::byte* packed) {
  OUTRIDER_CHECK(bits >= 1 && bits <= 8, "{} bits", bits);
  for (std::size_t j = 0; j < codes.size(); j += 8) {
    const std::size_t count = std::min<std::size_t>(8, codes.size() - j);
    std::uint64_t word = 0;
    for (std::size_t e = 0; e < count; ++e) word |= static_cast<std::uint64_t>(codes[j + e]) << (bits * e);
    const auto bytes = static_cast<std::size_t>(code_bytes(static_cast<std::int64_t>(count), bits));
    std::memcpy(packed, &word, bytes);
    packed += bytes;
  }
}

AffineGroup quantize_affine(std::span<const float> weights, int bits, std::uint8_t* codes) {
  const auto levels = static_cast<float>((1 << bits) - 1);
  const auto [low, high] = std::minmax_element(weights.begin(), weights.end());
  const float min = *low, max = *high;
  // The edge of larger magnitude is anchored, so the scale may be negative.
  float scale = std::max((max - min) / levels, 1e-7f);
  const bool anchor_max = std::fabs(min) <= std::fabs(max);
  if (anchor_max) scale = -scale;
  const float edge = anchor_max ? max : min;
  const float anchor_code = std::rint(edge / scale);
  AffineGroup group{scale, 0.0f};
  if (anchor_code != 0.0f) group = {edge / anchor_code, edge};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float code = std::rint((weights[i] - group.bias) / group.scale);
    codes[i] = static_cast<std::uint8_t>(std::clamp(code, 0.0f, levels));
  }
  return group;
}

float Fp4Scales::halved(std::uint8_t stored) const {
  if (mode == Fp4Mode::mxfp4) return f32_from_e8m0(stored) * 0.5f;  // exact: 2^-128 is a subnormal
  const float scale = f32_from_e4m3(stored);
  return (global_scale ? scale * (*global_scale / 2688.0f) : scale) * 0.5f;  // 2688 = 448 * 6, the largest product
}

std::optional<std::size_t> group_without_values(const Fp4Scales& scales, std::span<const std::uint8_t> codes,
                                                const std::uint8_t* stored) {
  const auto group = static_cast<std::size_t>(group_of(scales.mode));
  for (std::size_t g = 0; g < codes.size() / group; ++g) {
    const float scale = scales.halved(stored[g]);
    if (std::isfinite(scale * 12.0f)) continue;  // 12: twice the largest e2m1 value
    for (const std::uint8_t code : codes.subspan(g * group, group))
      if (!std::isfinite(scale * static_cast<float>(kE2m1Doubled[code]))) return g;
  }
  return std::nullopt;
}

void dequantize_mxfp8(const std::byte* codes, const std::byte* scales, std::span<float> values) {
  for (std::size_t j = 0; j < values.size(); ++j)
    values[j] = f32_from_e4m3(static_cast<std::uint8_t>(codes[j])) *
                f32_from_e8m0(static_cast<std::uint8_t>(scales[j / kMxfp8Group]));
}

}  // namespace outrider
