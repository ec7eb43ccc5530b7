// Pieces the AVX-512 Linear kernels share (F, BW, VL, DQ; no VNNI). Every function carries the target attribute: no -m
// flag, no STL inside. A panel line of 16 u32 (or 16 values) is one register.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear_strip.h"

#define OUTRIDER_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define OUTRIDER_AVX512_INLINE __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"), always_inline)) inline

namespace outrider::linear::avx512 {

// Sixteen values of a stored type as f32, exactly.
template <FloatType Type>
OUTRIDER_AVX512_INLINE __m512 load16(const std::byte* p) {
  if constexpr (Type == FloatType::f32) {
    return _mm512_loadu_ps(p);
  } else {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (Type == FloatType::f16) return _mm512_cvtph_ps(raw);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
}

OUTRIDER_AVX512_INLINE __m512 load16(const std::byte* p, FloatType type) {
  switch (type) {
    case FloatType::f16:
      return load16<FloatType::f16>(p);
    case FloatType::bf16:
      return load16<FloatType::bf16>(p);
    default:
      return load16<FloatType::f32>(p);
  }
}

// A pair of input codes in every lane.
OUTRIDER_AVX512_INLINE __m512i broadcast_pair(const std::int16_t* codes) {
  int pair;
  std::memcpy(&pair, codes, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// acc + the two products of each lane, exact in int32. The empty asm hides the sum from the compilers, which otherwise
// reassociate the integer sums of a loop body and spill accumulators.
OUTRIDER_AVX512_INLINE __m512i add_products(__m512i acc, __m512i weights, __m512i pair) {
  __m512i sum = _mm512_add_epi32(acc, _mm512_madd_epi16(weights, pair));
  asm("" : "+v"(sum));
  return sum;
}

// t = fma(s, fma(scale, float(I), bias*float(S)), t) for sixteen outputs at t.
OUTRIDER_AVX512_INLINE void add_group(__m512i sums, __m512 scale, __m512 bias, const float* s_and_sum, float* t) {
  const __m512 inner =
      _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums), _mm512_mul_ps(bias, _mm512_set1_ps(s_and_sum[1])));
  _mm512_store_ps(t, _mm512_fmadd_ps(_mm512_set1_ps(s_and_sum[0]), inner, _mm512_load_ps(t)));
}

void code_rows(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
               std::uint32_t* faults);
void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy);
void dense_product(const PackedMatrix& w, Range strips, const float* x, std::int64_t ldx, Range rows, float* y,
                   std::int64_t ldy);

}  // namespace outrider::linear::avx512
