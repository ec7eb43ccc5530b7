// AVX-512: coding of input rows (numerics.md section 2), as 16-bit integers in their order or as the byte planes of
// AMX.
#ifdef __x86_64__

#include "kernels/cpu/linear_amx.h"
#include "kernels/cpu/linear_avx512.h"

namespace outrider::linear {
namespace avx512 {
namespace {

enum class Order { integers, planes };

// Stores codes i .. i+15 of a group.
template <Order To>
OUTRIDER_AVX512_INLINE void store_codes(__m512i code, int group, int i, std::int16_t* codes) {
  if constexpr (To == Order::integers) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), _mm512_cvtepi32_epi16(code));
  } else {
    auto* const planes = reinterpret_cast<std::uint8_t*>(codes);
    const __m128i order = _mm_loadu_si128(reinterpret_cast<const __m128i*>(amx::kPlaneOrder));
    const __m128i high = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 8)), order);
    const __m128i low = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(code), order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + i), high);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + group + i), low);
  }
}

// Codes one group; the conversion rounds half to even under the engine's MXCSR. Returns the fault bits.
template <Order To>
OUTRIDER_AVX512_INLINE std::uint32_t code_group(const float* x, int group, std::int16_t* codes, float* s_and_sum) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < group; i += 16) {
    largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
  }
  const int bits = _mm512_reduce_max_epi32(largest);
  if (!can_be_coded(bits)) return code_as_zeros(bits, group, codes, s_and_sum);
  float a;
  std::memcpy(&a, &bits, sizeof a);
  const __m512 factor = _mm512_set1_ps(kLargestCode / a);
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < group; i += 16) {
    const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
    store_codes<To>(code, group, i, codes);
    sum = _mm512_add_epi32(sum, code);
  }
  s_and_sum[0] = a / kLargestCode;
  s_and_sum[1] = static_cast<float>(_mm512_reduce_add_epi32(sum));
  return 0;
}

template <Order To>
OUTRIDER_AVX512_INLINE void code_all(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows,
                                     const CodedRows& out, std::uint32_t* faults) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    std::uint32_t fault = 0;
    for (std::int64_t g = 0; g < k / group; ++g) {
      const std::int64_t at = g * out.rows + row;
      fault |= code_group<To>(x + row * ldx + g * group, group, out.codes + at * group, out.scales + at * 2);
    }
    faults[row] |= fault;
  }
}

}  // namespace

OUTRIDER_AVX512 void code_rows(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows,
                               const CodedRows& out, std::uint32_t* faults) {
  code_all<Order::integers>(x, ldx, k, group, rows, out, faults);
}

}  // namespace avx512

OUTRIDER_AVX512 void amx::code_planes(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows,
                                      const CodedRows& out, std::uint32_t* faults) {
  avx512::code_all<avx512::Order::planes>(x, ldx, k, group, rows, out, faults);
}

}  // namespace outrider::linear

#endif  // __x86_64__
