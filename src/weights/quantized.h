// Quantized values by bits: affine codes as MLX packs them and the affine quantizer (models.md 1.7), the fp modes
// (1.8). Scalar code: packing at load is bound by memory; the products live in kernels/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "weights/float_bits.h"

namespace outrider {

// Code j of a row occupies bits [j*b, (j+1)*b), lowest bit first; b in 1..8.
// Bytes of `count` codes; a row's count*b is a multiple of 8.
constexpr std::int64_t code_bytes(std::int64_t count, int bits) { return (count * bits + 7) / 8; }
void unpack_codes(const std::byte* packed, int bits, std::span<std::uint8_t> codes);
void pack_codes(std::span<const std::uint8_t> codes, int bits, std::byte* packed);

// One group of the affine quantizer, f32 throughout, rint half to even. Writes one code per weight; scale and bias are
// unrounded (they are rounded to the storage type after the codes are made). Weights must be finite.
struct AffineGroup {
  float scale = 0;
  float bias = 0;
};
AffineGroup quantize_affine(std::span<const float> weights, int bits, std::uint8_t* codes);

// mxfp4 and nvfp4: weight = e2m1(code) * scale, as kernels/packed_matrix.h holds them: an integer of twice the value
// and half of the scale. One scale byte per group: e8m0 (mxfp4) or e4m3, times global_scale/2688 where a module has
// one.
enum class Fp4Mode : std::uint8_t { mxfp4, nvfp4 };
constexpr int group_of(Fp4Mode mode) { return mode == Fp4Mode::nvfp4 ? 16 : 32; }
constexpr std::string_view name_of(Fp4Mode mode) { return mode == Fp4Mode::nvfp4 ? "nvfp4" : "mxfp4"; }
struct Fp4Scales {
  Fp4Mode mode = Fp4Mode::mxfp4;
  std::optional<float> global_scale;  // nvfp4 only

  // NaN for the bytes that are not numbers (e8m0 255, e4m3 127 and 255): readers refuse them.
  float halved(std::uint8_t stored) const;
};
// The first group of a row whose scale is no number or takes one of its codes beyond f32.
std::optional<std::size_t> group_without_values(const Fp4Scales& scales, std::span<const std::uint8_t> codes,
                                                const std::uint8_t* stored);

// mxfp8: e4m3 codes, one e8m0 scale byte per 32. A row of `values.size()` values; NaN where code or scale is no number.
inline constexpr int kMxfp8Group = 32;
void dequantize_mxfp8(const std::byte* codes, const std::byte* scales, std::span<float> values);

}  // namespace outrider
