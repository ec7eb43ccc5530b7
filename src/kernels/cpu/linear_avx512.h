// Pieces the AVX-512 Linear kernels share (F, BW, VL, DQ), also those of the VNNI and AMX tables. Every function
// carries the target attribute: no -m flag, no STL inside. A panel line of 16 u32 (or 16 values) is one register.
#pragma once

#include <immintrin.h>

#include <utility>

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

// --- Codes of weights (packed_matrix.h) ---

// A way of coding weights. A unit is what is decoded at once: whole lines of every plane that divide each group width.
template <PackedKind Kind, int Bits>
struct Format {
  static constexpr PackedKind kKind = Kind;
  static constexpr Planes kPlanes = planes_of(Bits);
  static constexpr int kUnit = Kind == PackedKind::e2m1 ? 16 : 32;  // codes of a row
  static constexpr std::size_t kLowBytes = static_cast<std::size_t>(kUnit * kPlanes.low / 32) * kLineBytes;
  static constexpr std::size_t kHighBytes = static_cast<std::size_t>(kUnit * kPlanes.high / 32) * kLineBytes;
};

// The words of both planes of a block.
struct Words {
  const std::byte* low;
  const std::byte* high;
};
template <class F>
OUTRIDER_AVX512_INLINE Words words_of(const std::byte* block, std::size_t head_bytes, std::int64_t group) {
  const std::byte* low = block + head_bytes;
  return {low, low + group / F::kUnit * static_cast<std::int64_t>(F::kLowBytes)};
}
template <class F>
OUTRIDER_AVX512_INLINE void next_unit(Words& words) {
  words.low += F::kLowBytes;
  words.high += F::kHighBytes;
}

// The use that `use` makes of a matrix' format: use.template operator()<Format<...>>().
template <class Use>
auto with_format(const PackedMatrix& w, Use&& use) {
  if (w.kind == PackedKind::e2m1) return use.template operator()<Format<PackedKind::e2m1, 4>>();
  switch (w.bits) {
    case 2:
      return use.template operator()<Format<PackedKind::affine, 2>>();
    case 3:
      return use.template operator()<Format<PackedKind::affine, 3>>();
    case 4:
      return use.template operator()<Format<PackedKind::affine, 4>>();
    case 5:
      return use.template operator()<Format<PackedKind::affine, 5>>();
    case 6:
      return use.template operator()<Format<PackedKind::affine, 6>>();
    default:
      return use.template operator()<Format<PackedKind::affine, 8>>();
  }
}

template <int Right>
OUTRIDER_AVX512_INLINE __m512i shift_lanes16(__m512i v) {
  if constexpr (Right > 0) return _mm512_srli_epi16(v, Right);
  if constexpr (Right < 0) return _mm512_slli_epi16(v, -Right);
  return v;
}

// Code pair J of a plane of `Bits` bits, moved to bit `To` of each 16-bit lane; other bits are anything.
template <int Bits, int J, int To>
OUTRIDER_AVX512_INLINE __m512i plane_pair(const std::byte* words) {
  constexpr int kPairs = 16 / Bits;  // of a line
  return shift_lanes16<Bits*(J % kPairs) - To>(_mm512_loadu_si512(words + J / kPairs * kLineBytes));
}

// A where the mask's bit is 1, b elsewhere.
OUTRIDER_AVX512_INLINE __m512i select_bits(__m512i mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(mask, a, b, 0xCA);
}

// The integers of e2m1 for vpermw, which looks at five bits of an index: the sixteen values twice.
OUTRIDER_AVX512_INLINE __m512i e2m1_table16() {
  return _mm512_broadcast_i64x4(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Doubled))));
}

// Code pair J of a unit: the integers of codes 2J and 2J+1 of sixteen rows as 16-bit halves of their lanes.
template <class F, int J>
OUTRIDER_AVX512_INLINE __m512i weight_pair(const Words& words) {
  constexpr int kLow = F::kPlanes.low, kHigh = F::kPlanes.high;
  const __m512i low = plane_pair<kLow, J, 0>(words.low);
  if constexpr (F::kKind == PackedKind::e2m1) return _mm512_permutexvar_epi16(low, e2m1_table16());
  if constexpr (kHigh != 0) {
    const __m512i high = plane_pair<kHigh, J, kLow>(words.high);
    return _mm512_and_si512(select_bits(_mm512_set1_epi16((1 << kLow) - 1), low, high),
                            _mm512_set1_epi16((1 << (kLow + kHigh)) - 1));
  }
  if constexpr (J % (16 / kLow) == 16 / kLow - 1) return low;  // the shift left zeros above the topmost code
  return _mm512_and_si512(low, _mm512_set1_epi16((1 << kLow) - 1));
}

// --- Sums ---

// A pair of input codes in every lane.
OUTRIDER_AVX512_INLINE __m512i broadcast_pair(const std::int16_t* codes) {
  int pair;
  std::memcpy(&pair, codes, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// Scale and bias of sixteen outputs; e2m1 has no bias.
template <PackedKind Kind>
struct Head {
  __m512 scale;
  __m512 bias;
};
template <PackedKind Kind>
OUTRIDER_AVX512_INLINE Head<Kind> load_head(const std::byte* block, FloatType type) {
  if constexpr (Kind == PackedKind::e2m1) return {load16<FloatType::f32>(block), _mm512_undefined_ps()};
  return {load16(block, type), load16(block + PackedMatrix::kPanelRows * size_of(type), type)};
}

// t + one group for sixteen outputs of one row: fma(s, fma(scale, float(I), bias*float(S)), t), or
// fma(s, scale*float(I), t) of e2m1. `integer` is float(I), `sums` is I.
template <PackedKind Kind>
OUTRIDER_AVX512_INLINE __m512 add_group(__m512 integer, const Head<Kind>& head, const float* s_and_sum, __m512 t) {
  __m512 inner;
  if constexpr (Kind == PackedKind::e2m1) {
    inner = _mm512_mul_ps(head.scale, integer);
  } else {
    inner = _mm512_fmadd_ps(head.scale, integer, _mm512_mul_ps(head.bias, _mm512_set1_ps(s_and_sum[1])));
  }
  return _mm512_fmadd_ps(_mm512_set1_ps(s_and_sum[0]), inner, t);
}
template <PackedKind Kind>
OUTRIDER_AVX512_INLINE __m512 add_group(__m512i sums, const Head<Kind>& head, const float* s_and_sum, __m512 t) {
  return add_group(_mm512_cvtepi32_ps(sums), head, s_and_sum, t);
}

// Scales and biases of a strip's group as f32.
struct Heads {
  alignas(64) float scales[PackedMatrix::kStripRows];
  alignas(64) float biases[PackedMatrix::kStripRows];
};
template <PackedKind Kind>
OUTRIDER_AVX512_INLINE void unpack_head(const std::byte* block, FloatType type, std::int64_t panel, Heads& out) {
  const Head<Kind> head = load_head<Kind>(block, type);
  _mm512_store_ps(out.scales + panel * PackedMatrix::kPanelRows, head.scale);
  if constexpr (Kind == PackedKind::affine) _mm512_store_ps(out.biases + panel * PackedMatrix::kPanelRows, head.bias);
}
template <PackedKind Kind>
OUTRIDER_AVX512_INLINE Head<Kind> head_of(const Heads& heads, std::int64_t panel) {
  if constexpr (Kind == PackedKind::e2m1)
    return {_mm512_load_ps(heads.scales + panel * PackedMatrix::kPanelRows), _mm512_undefined_ps()};
  return {_mm512_load_ps(heads.scales + panel * PackedMatrix::kPanelRows),
          _mm512_load_ps(heads.biases + panel * PackedMatrix::kPanelRows)};
}

// Prefetches `bytes` (whole lines) a page ahead: all lines of a block or none, two of five are worse than either.
OUTRIDER_AVX512_INLINE void prefetch_block(const std::byte* block, std::size_t bytes) {
  for (std::size_t line = 0; line < bytes; line += kLineBytes) prefetch_ahead(block + line, kAheadBytes);
}

void code_rows(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
               std::uint32_t* faults);
void dense_product(const PackedMatrix& w, Range strips, const float* x, std::int64_t ldx, Range rows, float* y,
                   std::int64_t ldy);

}  // namespace outrider::linear::avx512
