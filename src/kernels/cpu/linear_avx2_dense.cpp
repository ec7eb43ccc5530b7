// AVX2: products of dense weights with f32 rows, one fma chain over K per output (lanes over outputs).
#ifdef __x86_64__

#include "kernels/cpu/linear_avx2.h"

namespace outrider::linear::avx2 {
namespace {

constexpr std::int64_t kPanelRows = PackedMatrix::kPanelRows;
constexpr std::int64_t kStripRows = PackedMatrix::kStripRows;

enum class Reading { stream, cached };  // stream: weights come from memory, prefetch them

// Continues the chains of one strip for one row over `depth` values of K. The first panel of k is at
// weights + k*Panels*16 values; t: [Panels*16].
template <int Panels, FloatType Type, Reading Kind>
OUTRIDER_AVX2_INLINE void chain_row(const std::byte* weights, const float* x, std::int64_t depth, float* t) {
  constexpr std::size_t kHalfBytes = 8 * size_of(Type);
  constexpr std::size_t kStepBytes = 2 * Panels * kHalfBytes;
#define OUTRIDER_LOAD(i) \
  [[maybe_unused]] __m256 a##i = i < 2 * Panels ? _mm256_load_ps(t + 8 * (i % (2 * Panels))) : _mm256_setzero_ps();
  OUTRIDER_TWELVE(OUTRIDER_LOAD)
#undef OUTRIDER_LOAD
  // Decoding of later values is hoisted into an unrolled body until accumulators spill.
  [[maybe_unused]] constexpr int kUnroll = Type == FloatType::f32 ? 4 : 1;
#pragma clang loop unroll_count(kUnroll)
  for (std::int64_t k = 0; k < depth; ++k, weights += kStepBytes) {
    const __m256 input = _mm256_set1_ps(x[k]);
#define OUTRIDER_HALF(i)                                                         \
  if constexpr (i < 2 * Panels) {                                                \
    if constexpr (Kind == Reading::stream && i * kHalfBytes % kLineBytes == 0) { \
      prefetch_ahead(weights + i * kHalfBytes, kAheadBytes);                     \
    }                                                                            \
    a##i = _mm256_fmadd_ps(input, load8<Type>(weights + i * kHalfBytes), a##i);  \
  }
    OUTRIDER_TWELVE(OUTRIDER_HALF)
#undef OUTRIDER_HALF
  }
#define OUTRIDER_STORE(i) \
  if constexpr (i < 2 * Panels) _mm256_store_ps(t + 8 * i, a##i);
  OUTRIDER_TWELVE(OUTRIDER_STORE)
#undef OUTRIDER_STORE
}

// The same for two rows over Count panels of a strip, from its panel First, with f32 weights in L1: a weight is loaded
// once for two rows, so the loads no longer bound the multiply-adds. t: [2][Panels*16].
template <int Panels, int First, int Count>
OUTRIDER_AVX2_INLINE void chain_two_rows(const float* weights, const float* x, std::int64_t ldx, std::int64_t depth,
                                         float* t) {
  constexpr std::int64_t kColumns = Panels * kPanelRows;
  weights += First * kPanelRows;
  float* const t0 = t + First * kPanelRows;
  float* const t1 = t0 + kColumns;
  const float* const x1 = x + ldx;
#define OUTRIDER_LOAD(i)                                                                                           \
  [[maybe_unused]] __m256 a##i = i < 2 * Count ? _mm256_load_ps(t0 + 8 * (i % (2 * Count))) : _mm256_setzero_ps(); \
  [[maybe_unused]] __m256 b##i = i < 2 * Count ? _mm256_load_ps(t1 + 8 * (i % (2 * Count))) : _mm256_setzero_ps();
  OUTRIDER_SIX(OUTRIDER_LOAD)
#undef OUTRIDER_LOAD
#pragma clang loop unroll_count(4)
  for (std::int64_t k = 0; k < depth; ++k, weights += kColumns) {
    const __m256 first = _mm256_set1_ps(x[k]), second = _mm256_set1_ps(x1[k]);
#define OUTRIDER_HALF(i)                                   \
  if constexpr (i < 2 * Count) {                           \
    const __m256 weight = _mm256_load_ps(weights + 8 * i); \
    a##i = _mm256_fmadd_ps(first, weight, a##i);           \
    b##i = _mm256_fmadd_ps(second, weight, b##i);          \
  }
    OUTRIDER_SIX(OUTRIDER_HALF)
#undef OUTRIDER_HALF
  }
#define OUTRIDER_STORE(i)              \
  if constexpr (i < 2 * Count) {       \
    _mm256_store_ps(t0 + 8 * i, a##i); \
    _mm256_store_ps(t1 + 8 * i, b##i); \
  }
  OUTRIDER_SIX(OUTRIDER_STORE)
#undef OUTRIDER_STORE
}

template <FloatType Type>
OUTRIDER_AVX2_INLINE void decode(const std::byte* weights, std::int64_t values, float* out) {
  for (std::int64_t i = 0; i < values; i += 16) {
    prefetch_ahead(weights + i * size_of(Type), kAheadBytes);
    _mm256_store_ps(out + i, load8<Type>(weights + i * size_of(Type)));
    _mm256_store_ps(out + i + 8, load8<Type>(weights + (i + 8) * size_of(Type)));
  }
}

// One strip for `rows` (at most kTileRows) rows of x. K is taken in slices that stay in L1 while all rows use them;
// 16-bit weights are decoded once per slice. A single row streams all of K with its chains in registers.
template <int Panels, FloatType Type>
OUTRIDER_AVX2 void strip_rows(const std::byte* weights, std::int64_t k, const float* x, std::int64_t ldx,
                              std::int64_t rows, float* tile) {
  constexpr std::int64_t kColumns = Panels * kPanelRows;
  if (rows == 1) {
    chain_row<Panels, Type, Reading::stream>(weights, x, k, tile);
    return;
  }
  alignas(64) float decoded[Type == FloatType::f32 ? 16 : kDenseDepth * kColumns];
  for (std::int64_t at = 0; at < k; at += kDenseDepth) {
    const std::int64_t depth = at + kDenseDepth < k ? kDenseDepth : k - at;
    std::int64_t r = 0;
    const std::byte* slice = weights + static_cast<std::size_t>(at * kColumns) * size_of(Type);
    if constexpr (Type == FloatType::f32) {
      chain_row<Panels, Type, Reading::stream>(slice, x + at, depth, tile);
      r = 1;
    } else {
      decode<Type>(slice, depth * kColumns, decoded);
      slice = reinterpret_cast<const std::byte*>(decoded);
    }
    for (; r + 2 <= rows; r += 2) {
      prefetch_slice(x + r * ldx + at, ldx);
      prefetch_slice(x + (r + 1) * ldx + at, ldx);
      const auto* floats = reinterpret_cast<const float*>(slice);
      constexpr int kFirstPart = Panels > 3 ? (Panels + 1) / 2 : Panels;
      chain_two_rows<Panels, 0, kFirstPart>(floats, x + r * ldx + at, ldx, depth, tile + r * kColumns);
      if constexpr (kFirstPart < Panels) {
        chain_two_rows<Panels, kFirstPart, Panels - kFirstPart>(floats, x + r * ldx + at, ldx, depth,
                                                                tile + r * kColumns);
      }
    }
    for (; r < rows; ++r) {
      prefetch_slice(x + r * ldx + at, ldx);
      chain_row<Panels, FloatType::f32, Reading::cached>(slice, x + r * ldx + at, depth, tile + r * kColumns);
    }
  }
}

using StripRows = void (*)(const std::byte*, std::int64_t, const float*, std::int64_t, std::int64_t, float*);
template <FloatType Type>
constexpr StripRows kStripRowsOf[] = {strip_rows<1, Type>, strip_rows<2, Type>, strip_rows<3, Type>,
                                      strip_rows<4, Type>, strip_rows<5, Type>, strip_rows<6, Type>};

StripRows strip_rows_of(FloatType type, std::int64_t panels) {
  switch (type) {
    case FloatType::f16:
      return kStripRowsOf<FloatType::f16>[panels - 1];
    case FloatType::bf16:
      return kStripRowsOf<FloatType::bf16>[panels - 1];
    default:
      return kStripRowsOf<FloatType::f32>[panels - 1];
  }
}

}  // namespace

void dense_product(const PackedMatrix& w, Range strips, const float* x, std::int64_t ldx, Range rows, float* y,
                   std::int64_t ldy) {
  alignas(64) float tile[kTileRows * kStripRows];
  for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
    const std::int64_t panels = w.panels_of(strip);
    const StripRows run = strip_rows_of(w.scale_type, panels);
    for (std::int64_t row = rows.begin; row < rows.end; row += kTileRows) {
      const std::int64_t count = rows.end - row < kTileRows ? rows.end - row : kTileRows;
      std::memset(tile, 0, static_cast<std::size_t>(count * panels * kPanelRows) * sizeof(float));
      run(w.data + w.offset(strip, 0, 0), w.k, x + row * ldx, ldx, count, tile);
      store_strip(w, strip, tile, panels * kPanelRows, count, y + row * ldy, ldy);
    }
  }
}

}  // namespace outrider::linear::avx2

#endif  // __x86_64__
