// AVX-512 primitives (F, BW, VL, DQ) and the kernels over them; only functions marked VECTOR or PRIMITIVE use it.
#ifdef __x86_64__

#include <immintrin.h>

#include "kernels/cpu/vector_kernels.h"
#include "kernels/exp32_constants.h"
#include "kernels/softplus32_constants.h"

#define VECTOR __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"), unused)) static
#define PRIMITIVE VECTOR inline __attribute__((always_inline))
#define OUTRIDER_NOINLINE __attribute__((noinline))

namespace outrider {
namespace {
namespace avx512 {

using R = __m512;
constexpr int kLanes = 16;

PRIMITIVE R splat(float x) { return _mm512_set1_ps(x); }
PRIMITIVE R load(const float* p) { return _mm512_loadu_ps(p); }
PRIMITIVE R load(const std::uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
PRIMITIVE void store(float* p, R v) { _mm512_storeu_ps(p, v); }
// Past the caches; p aligned to R. Other threads see it after finish_streams().
PRIMITIVE void stream(float* p, R v) { _mm512_stream_ps(p, v); }
PRIMITIVE void finish_streams() { _mm_sfence(); }
PRIMITIVE void store_f16(std::uint16_t* p, R v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

PRIMITIVE R add(R a, R b) { return _mm512_add_ps(a, b); }
PRIMITIVE R sub(R a, R b) { return _mm512_sub_ps(a, b); }
PRIMITIVE R mul(R a, R b) { return _mm512_mul_ps(a, b); }
PRIMITIVE R div(R a, R b) { return _mm512_div_ps(a, b); }
PRIMITIVE R fma(R a, R b, R c) { return _mm512_fmadd_ps(a, b, c); }
PRIMITIVE R negate(R a) { return _mm512_xor_ps(a, splat(-0.0F)); }
PRIMITIVE R absolute(R a) { return _mm512_andnot_ps(splat(-0.0F), a); }
// The larger of a running maximum and x; the instruction returns its second operand when x is a NaN.
PRIMITIVE R larger(R x, R running) { return _mm512_max_ps(x, running); }
PRIMITIVE R clamp_keeping_nan(R x, float limit) { return _mm512_max_ps(splat(-limit), _mm512_min_ps(splat(limit), x)); }

// The lanes [0, n), 0 <= n <= 16.
PRIMITIVE __mmask16 first(std::int64_t n) { return static_cast<__mmask16>((1U << n) - 1U); }
// Lanes [0, n) of memory, zeros beyond; nothing beyond is touched.
PRIMITIVE R load_first(const float* p, std::int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
PRIMITIVE void store_first(float* p, R v, std::int64_t n) { _mm512_mask_storeu_ps(p, first(n), v); }
PRIMITIVE R keep_first(R v, std::int64_t n, float other) { return _mm512_mask_mov_ps(splat(other), first(n), v); }

// The pieces of exp. The integer in the low bits of `round` is added to the exponent of p.
PRIMITIVE R add_exponent(R p, R round) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(round), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
}
PRIMITIVE R zero_below(R v, R x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, splat(limit), _CMP_NLT_UQ), v);
}
PRIMITIVE R replace_above(R v, R x, float limit, R other) {
  return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, splat(limit), _CMP_GT_OQ), other);
}
PRIMITIVE R keep_nan(R v, R x) { return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x); }

// u = mantissa*2^exponent for a positive u, mantissa in [sqrt(1/2), sqrt(2)); inverse = 2^-exponent.
struct LogParts {
  R exponent, mantissa, inverse;
};
PRIMITIVE LogParts log_parts(R u) {
  const __m512i bits = _mm512_castps_si512(u);
  const __m512i k = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(Softplus32::kSqrtHalfBits)), 23);
  const __m512i shift = _mm512_slli_epi32(k, 23);
  return {_mm512_cvtepi32_ps(k), _mm512_castsi512_ps(_mm512_sub_epi32(bits, shift)),
          _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(Softplus32::kOneBits), shift))};
}

// Questions about every lane, one bit each.
PRIMITIVE unsigned bits_nan(R x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
PRIMITIVE unsigned bits_not_finite(R x) {
  return _mm512_cmp_ps_mask(absolute(x), splat(__builtin_inff()), _CMP_NLT_UQ);
}
PRIMITIVE unsigned bits_at_least(R x, float limit) { return _mm512_cmp_ps_mask(x, splat(limit), _CMP_GE_OQ); }
PRIMITIVE unsigned bits_equal(R a, R b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

PRIMITIVE float first_lane(R v) { return _mm512_cvtss_f32(v); }
// The tree of section 4: +8, +4, +2, +1.
PRIMITIVE float reduce16(const R* lanes) {
  const __m256 sum8 = _mm256_add_ps(_mm512_castps512_ps256(lanes[0]), _mm512_extractf32x8_ps(lanes[0], 1));
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
// v holds no NaN.
PRIMITIVE float max_across(R v) {
  const __m256 best8 = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 best = _mm_max_ps(_mm256_castps256_ps128(best8), _mm256_extractf128_ps(best8, 1));
  best = _mm_max_ps(best, _mm_movehl_ps(best, best));
  return _mm_cvtss_f32(_mm_max_ss(best, _mm_movehdup_ps(best)));
}

// Interleaved RoPE pairs.
PRIMITIVE R swap_pairs(R v) { return _mm512_permute_ps(v, 0xB1); }
PRIMITIVE R negate_even(R v) { return _mm512_xor_ps(v, _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000LL))); }
PRIMITIVE R twice_low(R v) {
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), v);
}
PRIMITIVE R twice_high(R v) {
  return _mm512_permutexvar_ps(_mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15), v);
}

#include "kernels/cpu/vector_kernels.inc"
// these use the vector kernels
#include "kernels/cpu/attention_kernels.inc"
#include "kernels/cpu/delta_kernels.inc"

}  // namespace avx512
}  // namespace

void fill_vector_kernels_avx512(KernelTable& table) {
  fill_vector_kernels_portable(table);  // rope_angles: f64, once per step, shared by all layers
  table.rms_norm = avx512::rms_norm;
  table.silu_mul = avx512::silu_mul;
  table.sigmoid_mul = avx512::sigmoid_mul;
  table.add = avx512::add;
  table.scale = avx512::scale;
  table.rope_rotate = avx512::rope_rotate;
  table.store_kv = avx512::store_kv;
  table.attend_chunk = avx512::attend_chunk;
  table.attend_merge = avx512::attend_merge;
  table.attend_finish = avx512::attend_finish;
  table.conv_silu = avx512::conv_silu;
  table.l2_norm = avx512::l2_norm;
  table.delta_gates = avx512::delta_gates;
  table.delta_steps = avx512::delta_steps;
  table.gated_norm = avx512::gated_norm;
  table.logp_tiles = avx512::logp_tiles;
  table.argmax = avx512::argmax;
}

}  // namespace outrider

#endif  // __x86_64__
