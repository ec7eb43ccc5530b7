// How AVX2 turns stored codes into the 16-bit integers of vpmaddwd: one policy per way to store them. Internal to
// linear_avx2_few.cpp (a few rows, in registers) and linear_avx2_many.cpp (many rows, through L1).
#pragma once

#include "kernels/cpu/linear_avx2.h"

namespace outrider::linear::avx2 {

// The storage form of a coded matrix. A unit is what one word of the plane with the fewest bits covers: its pairs of
// codes lie in kLowLines lines of the low plane and, where there is a high plane, in one line of that.
template <PackedKind Kind, int Bits>
struct Form {
  static constexpr PackedKind kKind = Kind;
  static constexpr int kLow = planes_of(Bits).low;
  static constexpr int kHigh = planes_of(Bits).high;
  static constexpr int kUnitCodes = 32 / (kHigh == 0 ? kLow : kHigh);
  static constexpr int kUnitPairs = kUnitCodes / 2;
  static constexpr int kWordPairs = 16 / kLow;  // of the low plane
  static constexpr int kLowLines = kUnitPairs / kWordPairs;
};

// Returns RESULT(form of w).
#define OUTRIDER_WITH_FORM(w, RESULT)                                         \
  if ((w).kind == PackedKind::e2m1) return RESULT(Form<PackedKind::e2m1, 4>); \
  switch ((w).bits) {                                                         \
    case 2:                                                                   \
      return RESULT(Form<PackedKind::affine, 2>);                             \
    case 3:                                                                   \
      return RESULT(Form<PackedKind::affine, 3>);                             \
    case 4:                                                                   \
      return RESULT(Form<PackedKind::affine, 4>);                             \
    case 5:                                                                   \
      return RESULT(Form<PackedKind::affine, 5>);                             \
    case 6:                                                                   \
      return RESULT(Form<PackedKind::affine, 6>);                             \
    default:                                                                  \
      return RESULT(Form<PackedKind::affine, 8>);                             \
  }

// Pair P of words of a `Bits` wide plane. The last pair needs no mask: a shift within 16 bits clears the rest.
template <int Bits, int P>
OUTRIDER_AVX2_INLINE __m256i plane_pair(__m256i words) {
  const __m256i mask = _mm256_set1_epi16((1 << Bits) - 1);
  if constexpr (Bits * (P + 1) == 16) return _mm256_srli_epi16(words, Bits * P);
  if constexpr (P == 0) return _mm256_and_si256(words, mask);
  return _mm256_and_si256(_mm256_srli_epi16(words, Bits * P), mask);
}

// Pair P of words of the high plane, moved above the low plane's bits.
template <int Low, int High, int P>
OUTRIDER_AVX2_INLINE __m256i raised_pair(__m256i words) {
  constexpr int kDown = High * P - Low;
  const __m256i mask = _mm256_set1_epi16(((1 << High) - 1) << Low);
  if constexpr (kDown < 0) return _mm256_and_si256(_mm256_slli_epi16(words, -kDown), mask);
  return _mm256_and_si256(_mm256_srli_epi16(words, kDown), mask);
}

// Pair P of words of e2m1 codes: one shuffle looks up the bytes of two pairs (P and P+2), which are then widened.
template <int P>
OUTRIDER_AVX2_INLINE __m256i e2m1_pair(__m256i words) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Doubled)));
  const __m256i nibbles = _mm256_and_si256(P % 2 == 0 ? words : _mm256_srli_epi16(words, 4), _mm256_set1_epi8(0x0F));
  const __m256i bytes = _mm256_shuffle_epi8(table, nibbles);
  return _mm256_srai_epi16(P < 2 ? _mm256_slli_epi16(bytes, 8) : bytes, 8);
}

// Pair P of a unit for eight rows: `low` is line P / kWordPairs of the unit's low plane, `high` that of the high one.
template <class F, int P>
OUTRIDER_AVX2_INLINE __m256i pair_of(__m256i low, [[maybe_unused]] __m256i high) {
  if constexpr (F::kKind == PackedKind::e2m1) {
    return e2m1_pair<P>(low);
  } else if constexpr (F::kHigh == 0) {
    return plane_pair<F::kLow, P % F::kWordPairs>(low);
  } else {
    return _mm256_or_si256(plane_pair<F::kLow, P % F::kWordPairs>(low), raised_pair<F::kLow, F::kHigh, P>(high));
  }
}

// The s and float(sum) of one row and group in every lane. Loaded once for all outputs: behind the first store to t the
// compiler would have to load them again.
struct RowScale {
  __m256 s, sum;
};
OUTRIDER_AVX2_INLINE RowScale row_scale(const float* s_and_sum) {
  return {_mm256_set1_ps(s_and_sum[0]), _mm256_set1_ps(s_and_sum[1])};
}

// t = fma(s, inner, t) for eight outputs at t; inner = fma(scale, float(I), bias*float(S)), or scale*float(I) of e2m1.
template <PackedKind Kind>
OUTRIDER_AVX2_INLINE void add_group(__m256i sums, __m256 scale, __m256 bias, RowScale row, float* t) {
  __m256 inner = _mm256_cvtepi32_ps(sums);
  if constexpr (Kind == PackedKind::affine) {
    inner = _mm256_fmadd_ps(scale, inner, _mm256_mul_ps(bias, row.sum));
  } else {
    inner = _mm256_mul_ps(scale, inner);
  }
  _mm256_store_ps(t, _mm256_fmadd_ps(row.s, inner, _mm256_load_ps(t)));
}

// Asks for the lines of y that a strip will be stored to, for the share of `rows` rows due when step `step` of `steps`
// begins. Rows of y lie pages apart and were pushed out of the caches by the weights; stores that miss wait for each
// other.
OUTRIDER_AVX2_INLINE void prefetch_output(const float* y, std::int64_t ldy, std::int64_t rows, std::int64_t step,
                                          std::int64_t steps) {
  for (std::int64_t r = rows * step / steps; r < rows * (step + 1) / steps; ++r) {
    const auto* row = reinterpret_cast<const std::byte*>(y + r * ldy);
    for (std::size_t line = 0; line < PackedMatrix::kStripRows * sizeof(float); line += kLineBytes) {
      __builtin_prefetch(row + line, 1);
    }
    __builtin_prefetch(row + PackedMatrix::kStripRows * sizeof(float) - 1, 1);
  }
}

// M (1..kFewRows) rows from `row` of the coded input against one strip, and any number of rows.
using FewRowsStrip = void (*)(const PackedMatrix&, std::int64_t strip, const CodedRows&, std::int64_t row, float* y,
                              std::int64_t ldy);
FewRowsStrip few_rows_strip_of(const PackedMatrix& w, std::int64_t rows);
void many_rows_strip(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, Range rows, float* y,
                     std::int64_t ldy);

}  // namespace outrider::linear::avx2
