// Rows of GGUF blocks as affine codes with one scale and bias per 32 values (models.md 1.11). Q4_0, Q4_1, Q5_0, Q5_1,
// Q8_0, Q4_K and Q5_K keep their codes, so value = code*scale + bias is the file's own value; Q2_K, Q3_K and Q6_K have
// groups of 16, so they are dequantized and quantized again. MXFP4 keeps its e2m1 codes and scale bytes. Source: the
// block formats of ggml.
#pragma once

#include <cstdint>
#include <span>

#include "weights/float_bits.h"
#include "weights/gguf.h"

namespace outrider {

inline constexpr int kGgufGroup = 32;

// What the user may choose at import. `exact` keeps what f16 cannot hold as f32 (scales of K types and of
// quantized-again types: products of two factors); `f16` rounds each once. Q2_K and Q3_K become `requantize_bits`, Q6_K
// always 8.
enum class ScaleStorage : std::uint8_t { exact, f16 };
struct GgufImport {
  ScaleStorage scales = ScaleStorage::exact;
  int requantize_bits = 8;  // 4 or 8
};

bool is_float(GgufType type);                              // F32, F16, BF16
FloatType float_type_of(GgufType type);                    // of a float type
int affine_bits(GgufType type, const GgufImport& import);  // of a type that becomes affine

// The type of scale and bias that holds every block of a tensor: f16 or f32. Reads the scales of types whose f16 scale
// times 8, 16 or 128 may overflow f16 (no real file has one).
FloatType scale_type_of(GgufType type, std::span<const std::byte> tensor, const GgufImport& import);

// One row of `codes.size()` values. scales and biases [k/32] are stored as `scale_type`. Returns false if one of them
// is not finite (in the file, or in `scale_type`).
bool decode_row(GgufType type, const std::byte* row, FloatType scale_type, int bits, std::span<std::uint8_t> codes,
                std::byte* scales, std::byte* biases);

// One row of MXFP4 as e2m1 codes and scale bytes [k/32] (e8m0).
void decode_mxfp4_row(const std::byte* row, std::span<std::uint8_t> codes, std::uint8_t* scales);

// One row as f32, as the file defines it, for Q2_K, Q3_K, Q6_K.
void dequantize_k_row(GgufType type, const std::byte* row, std::span<float> values);

}  // namespace outrider
