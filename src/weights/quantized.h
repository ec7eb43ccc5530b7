// Quantized values by bits: affine codes as MLX packs them and the affine quantizer (models.md 1.7), the fp modes
// (1.8). Scalar code: packing at load is bound by memory; the products live in kernels/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

// fp modes: value = element(code) * scale. e2m1 for mxfp4 and nvfp4 (bit 3 = sign), e4m3 for mxfp8.
enum class FpMode : std::uint8_t { mxfp4, nvfp4, mxfp8 };
constexpr int group_of(FpMode mode) { return mode == FpMode::nvfp4 ? 16 : 32; }
constexpr int bits_of(FpMode mode) { return mode == FpMode::mxfp8 ? 8 : 4; }
float f32_from_e2m1(std::uint8_t code);
// Row of `values.size()` values; `codes` packed as unpack_codes reads them, one scale byte per group. `global_scale`
// is nvfp4's optional factor g: the scales are multiplied by g/2688 (0: none). A NaN scale gives NaN values: callers
// refuse them.
void dequantize_fp(FpMode mode, const std::byte* codes, const std::byte* scales, float global_scale,
                   std::span<float> values);

}  // namespace outrider
