// AVX2: coding of input rows and unpacking of single weight rows (numerics.md sections 2 and 4).
#ifdef __x86_64__

#include "kernels/cpu/linear_avx2.h"

namespace outrider::linear::avx2 {
namespace {

OUTRIDER_AVX2_INLINE __m256i magnitude_bits(const float* x) {
  return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)), _mm256_set1_epi32(0x7fffffff));
}

OUTRIDER_AVX2_INLINE int largest_of(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  return _mm_cvtsi128_si32(m);
}

OUTRIDER_AVX2_INLINE int sum_of(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
  return _mm_cvtsi128_si32(s);
}

// Codes one group; the conversion rounds half to even under the engine's MXCSR. Returns the fault bits.
OUTRIDER_AVX2_INLINE std::uint32_t code_group(const float* x, int group, std::int16_t* codes, float* s_and_sum) {
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < group; i += 16) {
    largest = _mm256_max_epi32(largest, _mm256_max_epi32(magnitude_bits(x + i), magnitude_bits(x + i + 8)));
  }
  const int bits = largest_of(largest);
  if (!can_be_coded(bits)) return code_as_zeros(bits, group, codes, s_and_sum);
  float a;
  std::memcpy(&a, &bits, sizeof a);
  const __m256 factor = _mm256_set1_ps(kLargestCode / a);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < group; i += 16) {
    const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
    const __m256i second = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), factor));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), packed);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(packed, ones));
  }
  s_and_sum[0] = a / kLargestCode;
  s_and_sum[1] = static_cast<float>(sum_of(sum));
  return 0;
}

// Scale and bias of one row of a block.
OUTRIDER_AVX2_INLINE float value_at(const std::byte* p, FloatType type) {
  if (type == FloatType::f32) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  std::uint16_t raw;
  std::memcpy(&raw, p, sizeof raw);
  if (type == FloatType::f16) return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(raw)));
  const std::uint32_t bits = static_cast<std::uint32_t>(raw) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr std::int64_t kLineBytes = 4 * PackedMatrix::kPanelRows;

// Codes i..i+7 of one row, i a multiple of 8, from a plane of `Bits` bits that begins at the row's first word: code
// 2p+e of a word lies at bits b*p + 16e.
template <int Bits>
OUTRIDER_AVX2_INLINE __m256i eight_codes(const std::byte* words, int i) {
  const std::byte* word = words + i * Bits / 32 * kLineBytes;
  int first;
  std::memcpy(&first, word, sizeof first);
  __m256i lanes = _mm256_set1_epi32(first), shifts;
  if constexpr (Bits == 8) {  // two words
    int second;
    std::memcpy(&second, word + kLineBytes, sizeof second);
    lanes = _mm256_blend_epi32(lanes, _mm256_set1_epi32(second), 0xF0);
    shifts = _mm256_setr_epi32(0, 16, 8, 24, 0, 16, 8, 24);
  } else {
    constexpr int b = Bits;
    const int eighth = i % (32 / Bits) / 8;  // of the eights in a word
    shifts = _mm256_add_epi32(_mm256_setr_epi32(0, 16, b, 16 + b, 2 * b, 16 + 2 * b, 3 * b, 16 + 3 * b),
                              _mm256_set1_epi32(4 * b * eighth));
  }
  return _mm256_and_si256(_mm256_srlv_epi32(lanes, shifts), _mm256_set1_epi32((1 << Bits) - 1));
}

// Twice the values of eight e2m1 codes; code 8 (minus zero) gives 0.
OUTRIDER_AVX2_INLINE __m256i doubled_e2m1(__m256i codes) {
  const __m256i magnitudes = _mm256_permutevar8x32_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12), codes);
  const __m256i signs = _mm256_or_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(1));  // bit 3 on top
  return _mm256_sign_epi32(magnitudes, signs);
}

template <int Low, int High>
OUTRIDER_AVX2 void unpack_affine(const PackedMatrix& w, std::int64_t strip, std::int64_t panel, std::int64_t lane,
                                 float* y) {
  const std::size_t value_bytes = size_of(w.scale_type);
  for (std::int64_t g = 0; g < w.groups(); ++g, y += w.group) {
    const std::byte* block = w.data + w.offset(strip, g, panel);
    const __m256 scale = _mm256_set1_ps(value_at(block + lane * value_bytes, w.scale_type));
    const __m256 bias = _mm256_set1_ps(value_at(block + (PackedMatrix::kPanelRows + lane) * value_bytes, w.scale_type));
    const std::byte* low = block + w.head_bytes() + 4 * lane;
    const std::byte* high = low + w.group * Low / 32 * kLineBytes;
    for (int i = 0; i < w.group; i += 8) {
      __m256i codes = eight_codes<Low>(low, i);
      if constexpr (High != 0)
        codes = _mm256_or_si256(codes, _mm256_slli_epi32(eight_codes < High == 0 ? 1 : High > (high, i), Low));
      _mm256_storeu_ps(y + i, _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes), scale, bias));
    }
  }
}

OUTRIDER_AVX2 void unpack_e2m1(const PackedMatrix& w, std::int64_t strip, std::int64_t panel, std::int64_t lane,
                               float* y) {
  for (std::int64_t g = 0; g < w.groups(); ++g, y += w.group) {
    const std::byte* block = w.data + w.offset(strip, g, panel);
    const __m256 scale = _mm256_set1_ps(value_at(block + lane * sizeof(float), FloatType::f32));
    const std::byte* words = block + w.head_bytes() + 4 * lane;
    for (int i = 0; i < w.group; i += 8) {
      const __m256i doubled = doubled_e2m1(eight_codes<4>(words, i));
      _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_cvtepi32_ps(doubled), scale));
    }
  }
}

OUTRIDER_AVX2 void unpack_dense(const PackedMatrix& w, std::int64_t strip, std::int64_t panel, std::int64_t lane,
                                float* y) {
  const std::byte* p = w.data + w.offset(strip, 0, panel) + static_cast<std::size_t>(lane) * size_of(w.scale_type);
  const std::size_t step = static_cast<std::size_t>(w.panels_of(strip)) * w.block_bytes();
  for (std::int64_t i = 0; i < w.k; ++i) y[i] = value_at(p + static_cast<std::size_t>(i) * step, w.scale_type);
}

}  // namespace

OUTRIDER_AVX2 void code_rows(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows,
                             const CodedRows& out, std::uint32_t* faults) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    std::uint32_t fault = 0;
    for (std::int64_t g = 0; g < k / group; ++g) {
      const std::int64_t at = g * out.rows + row;
      fault |= code_group(x + row * ldx + g * group, group, out.codes + at * group, out.scales + at * 2);
    }
    faults[row] |= fault;
  }
}

void unpack_row(const PackedMatrix& w, std::int64_t row, float* y) {
  const std::int64_t strip = row / PackedMatrix::kStripRows;
  const std::int64_t panel = row % PackedMatrix::kStripRows / PackedMatrix::kPanelRows;
  const std::int64_t lane = row % PackedMatrix::kPanelRows;
  if (w.kind == PackedKind::dense) return unpack_dense(w, strip, panel, lane, y);
  if (w.kind == PackedKind::e2m1) return unpack_e2m1(w, strip, panel, lane, y);
  switch (w.bits) {
    case 2:
      return unpack_affine<2, 0>(w, strip, panel, lane, y);
    case 3:
      return unpack_affine<2, 1>(w, strip, panel, lane, y);
    case 4:
      return unpack_affine<4, 0>(w, strip, panel, lane, y);
    case 5:
      return unpack_affine<4, 1>(w, strip, panel, lane, y);
    case 6:
      return unpack_affine<4, 2>(w, strip, panel, lane, y);
    default:
      return unpack_affine<8, 0>(w, strip, panel, lane, y);
  }
}

}  // namespace outrider::linear::avx2

#endif  // __x86_64__
