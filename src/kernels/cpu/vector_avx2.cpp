// AVX2 primitives (with FMA and F16C) and the kernels over them. Only functions marked VECTOR or PRIMITIVE hold AVX2
// code.
#ifdef __x86_64__

#include <immintrin.h>

#include "kernels/cpu/vector_kernels.h"
#include "kernels/exp32_constants.h"
#include "kernels/softplus32_constants.h"

#define VECTOR __attribute__((target("avx2,fma,f16c"), unused)) static
#define PRIMITIVE VECTOR inline __attribute__((always_inline))
#define OUTRIDER_NOINLINE __attribute__((noinline))

namespace outrider {
namespace {
namespace avx2 {

using R = __m256;
constexpr int kLanes = 8;

PRIMITIVE R splat(float x) { return _mm256_set1_ps(x); }
PRIMITIVE R load(const float* p) { return _mm256_loadu_ps(p); }
PRIMITIVE R load(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
PRIMITIVE void store(float* p, R v) { _mm256_storeu_ps(p, v); }
// Past the caches; p aligned to R. Other threads see it after finish_streams().
PRIMITIVE void stream(float* p, R v) { _mm256_stream_ps(p, v); }
PRIMITIVE void finish_streams() { _mm_sfence(); }
PRIMITIVE void store_f16(std::uint16_t* p, R v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

PRIMITIVE R add(R a, R b) { return _mm256_add_ps(a, b); }
PRIMITIVE R sub(R a, R b) { return _mm256_sub_ps(a, b); }
PRIMITIVE R mul(R a, R b) { return _mm256_mul_ps(a, b); }
PRIMITIVE R div(R a, R b) { return _mm256_div_ps(a, b); }
PRIMITIVE R fma(R a, R b, R c) { return _mm256_fmadd_ps(a, b, c); }
PRIMITIVE R negate(R a) { return _mm256_xor_ps(a, splat(-0.0F)); }
PRIMITIVE R absolute(R a) { return _mm256_andnot_ps(splat(-0.0F), a); }
// The larger of a running maximum and x; the instruction returns its second operand when x is a NaN.
PRIMITIVE R larger(R x, R running) { return _mm256_max_ps(x, running); }
PRIMITIVE R clamp_keeping_nan(R x, float limit) { return _mm256_max_ps(splat(-limit), _mm256_min_ps(splat(limit), x)); }

// All ones in the lanes [0, n), 0 <= n <= 8.
PRIMITIVE __m256i first(std::int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// Lanes [0, n) of memory, zeros beyond; nothing beyond is touched.
PRIMITIVE R load_first(const float* p, std::int64_t n) { return _mm256_maskload_ps(p, first(n)); }
PRIMITIVE void store_first(float* p, R v, std::int64_t n) { _mm256_maskstore_ps(p, first(n), v); }
PRIMITIVE R keep_first(R v, std::int64_t n, float other) {
  return _mm256_blendv_ps(splat(other), v, _mm256_castsi256_ps(first(n)));
}

// The pieces of exp. The integer in the low bits of `round` is added to the exponent of p.
PRIMITIVE R add_exponent(R p, R round) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(round), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}
PRIMITIVE R zero_below(R v, R x, float limit) { return _mm256_and_ps(v, _mm256_cmp_ps(x, splat(limit), _CMP_NLT_UQ)); }
PRIMITIVE R replace_above(R v, R x, float limit, R other) {
  return _mm256_blendv_ps(v, other, _mm256_cmp_ps(x, splat(limit), _CMP_GT_OQ));
}
PRIMITIVE R keep_nan(R v, R x) { return _mm256_blendv_ps(v, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

// u = mantissa*2^exponent for a positive u, mantissa in [sqrt(1/2), sqrt(2)); inverse = 2^-exponent.
struct LogParts {
  R exponent, mantissa, inverse;
};
PRIMITIVE LogParts log_parts(R u) {
  const __m256i bits = _mm256_castps_si256(u);
  const __m256i k = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(Softplus32::kSqrtHalfBits)), 23);
  const __m256i shift = _mm256_slli_epi32(k, 23);
  return {_mm256_cvtepi32_ps(k), _mm256_castsi256_ps(_mm256_sub_epi32(bits, shift)),
          _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32(Softplus32::kOneBits), shift))};
}

// Questions about every lane, one bit each.
PRIMITIVE unsigned bits_of(R mask) { return static_cast<unsigned>(_mm256_movemask_ps(mask)); }
PRIMITIVE unsigned bits_nan(R x) { return bits_of(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
PRIMITIVE unsigned bits_not_finite(R x) {
  return bits_of(_mm256_cmp_ps(absolute(x), splat(__builtin_inff()), _CMP_NLT_UQ));
}
PRIMITIVE unsigned bits_at_least(R x, float limit) { return bits_of(_mm256_cmp_ps(x, splat(limit), _CMP_GE_OQ)); }
PRIMITIVE unsigned bits_equal(R a, R b) { return bits_of(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }

PRIMITIVE float first_lane(R v) { return _mm256_cvtss_f32(v); }
// The tree of section 4 from +4 on.
PRIMITIVE float reduce8(R v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
PRIMITIVE float reduce16(const R* lanes) { return reduce8(add(lanes[0], lanes[1])); }
// v holds no NaN.
PRIMITIVE float max_across(R v) {
  __m128 best = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  best = _mm_max_ps(best, _mm_movehl_ps(best, best));
  return _mm_cvtss_f32(_mm_max_ss(best, _mm_movehdup_ps(best)));
}

// Interleaved RoPE pairs.
PRIMITIVE R swap_pairs(R v) { return _mm256_permute_ps(v, 0xB1); }
PRIMITIVE R negate_even(R v) {
  return _mm256_xor_ps(v, _mm256_setr_ps(-0.0F, 0.0F, -0.0F, 0.0F, -0.0F, 0.0F, -0.0F, 0.0F));
}
PRIMITIVE R twice_low(R v) { return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)); }
PRIMITIVE R twice_high(R v) { return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)); }

#include "kernels/cpu/vector_kernels.inc"
// these use the vector kernels
#include "kernels/cpu/attention_kernels.inc"
#include "kernels/cpu/delta_kernels.inc"

}  // namespace avx2
}  // namespace

void fill_vector_kernels_avx2(KernelTable& table) {
  fill_vector_kernels_portable(table);  // rope_angles: f64, once per step, shared by all layers
  table.rms_norm = avx2::rms_norm;
  table.silu_mul = avx2::silu_mul;
  table.sigmoid_mul = avx2::sigmoid_mul;
  table.add = avx2::add;
  table.scale = avx2::scale;
  table.rope_rotate = avx2::rope_rotate;
  table.store_kv = avx2::store_kv;
  table.attend_chunk = avx2::attend_chunk;
  table.attend_merge = avx2::attend_merge;
  table.attend_finish = avx2::attend_finish;
  table.conv_silu = avx2::conv_silu;
  table.l2_norm = avx2::l2_norm;
  table.delta_gates = avx2::delta_gates;
  table.delta_steps = avx2::delta_steps;
  table.gated_norm = avx2::gated_norm;
  table.logp_tiles = avx2::logp_tiles;
  table.argmax = avx2::argmax;
}

}  // namespace outrider

#endif  // __x86_64__
