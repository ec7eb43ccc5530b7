// Pieces the AVX2 Linear kernels share. Every function carries the target attribute: no -m flag, no STL inside.
// A panel line of 16 u32 (or 16 values) is read as two halves, rows 0-7 and rows 8-15.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear_strip.h"

#define OUTRIDER_AVX2 __attribute__((target("avx2,fma,f16c,prfchw")))
#define OUTRIDER_AVX2_INLINE __attribute__((target("avx2,fma,f16c,prfchw"), always_inline)) inline

namespace outrider::linear::avx2 {

// Eight values of a stored type as f32, exactly.
template <FloatType Type>
OUTRIDER_AVX2_INLINE __m256 load8(const std::byte* p) {
  if constexpr (Type == FloatType::f32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  } else {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (Type == FloatType::f16) return _mm256_cvtph_ps(raw);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
}

OUTRIDER_AVX2_INLINE __m256 load8(const std::byte* p, FloatType type) {
  switch (type) {
    case FloatType::f16:
      return load8<FloatType::f16>(p);
    case FloatType::bf16:
      return load8<FloatType::bf16>(p);
    default:
      return load8<FloatType::f32>(p);
  }
}

OUTRIDER_AVX2_INLINE __m256i load_words(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// A pair of input codes in every lane.
OUTRIDER_AVX2_INLINE __m256i broadcast_pair(const std::int16_t* codes) {
  int pair;
  std::memcpy(&pair, codes, sizeof pair);
  return _mm256_set1_epi32(pair);
}

// acc + the two products of each lane, exact in int32. The empty asm hides the sum from the compilers, which otherwise
// reassociate the integer sums of a loop body and spill accumulators (M = 4: five spills, 10 % of the time).
OUTRIDER_AVX2_INLINE __m256i add_products(__m256i acc, __m256i weights, __m256i pair) {
  __m256i sum = _mm256_add_epi32(acc, _mm256_madd_epi16(weights, pair));
  asm("" : "+x"(sum));
  return sum;
}

void code_rows(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
               std::uint32_t* faults);
void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy);
void dense_product(const PackedMatrix& w, Range strips, const float* x, std::int64_t ldx, Range rows, float* y,
                   std::int64_t ldy);
void unpack_row(const PackedMatrix& w, std::int64_t row, float* y);

}  // namespace outrider::linear::avx2
