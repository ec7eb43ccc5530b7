// AVX-512: products of dense weights with f32 rows, one fma chain over K per output (lanes over outputs).
#ifdef __x86_64__

#include "kernels/cpu/linear_avx512.h"

namespace outrider::linear::avx512 {
namespace {

constexpr std::int64_t kPanelRows = PackedMatrix::kPanelRows;
constexpr std::int64_t kStripRows = PackedMatrix::kStripRows;

enum class Reading { stream, cached };  // stream: weights come from memory, prefetch them

// Continues the chains of one strip for Rows (1 or 4) rows over `depth` values of K. The first panel of k is at
// weights + k*Panels*16 values; row r of x at x + r*ldx; t: [Rows][Panels*16].
template <int Panels, int Rows, FloatType Type, Reading Kind>
OUTRIDER_AVX512_INLINE void chain_rows(const std::byte* weights, const float* x, std::int64_t ldx, std::int64_t depth,
                                       float* t) {
  constexpr std::size_t kPanelBytes = kPanelRows * size_of(Type);
  constexpr std::int64_t kColumns = Panels * kPanelRows;
#define OUTRIDER_LOAD(p)                                                                     \
  [[maybe_unused]] __m512 a##p = _mm512_setzero_ps(), b##p = a##p, c##p = a##p, d##p = a##p; \
  if constexpr (p < Panels) {                                                                \
    a##p = _mm512_load_ps(t + kPanelRows * p);                                               \
    if constexpr (Rows == 4) {                                                               \
      b##p = _mm512_load_ps(t + kColumns + kPanelRows * p);                                  \
      c##p = _mm512_load_ps(t + 2 * kColumns + kPanelRows * p);                              \
      d##p = _mm512_load_ps(t + 3 * kColumns + kPanelRows * p);                              \
    }                                                                                        \
  }
  OUTRIDER_SIX(OUTRIDER_LOAD)
#undef OUTRIDER_LOAD
#pragma clang loop unroll_count(2)
  for (std::int64_t k = 0; k < depth; ++k, weights += Panels * kPanelBytes) {
    const __m512 x_a = _mm512_set1_ps(x[k]);
    [[maybe_unused]] __m512 x_b, x_c, x_d;
    if constexpr (Rows == 4) {
      x_b = _mm512_set1_ps(x[ldx + k]);
      x_c = _mm512_set1_ps(x[2 * ldx + k]);
      x_d = _mm512_set1_ps(x[3 * ldx + k]);
    }
#define OUTRIDER_PANEL(p)                                                         \
  if constexpr (p < Panels) {                                                     \
    if constexpr (Kind == Reading::stream && p * kPanelBytes % kLineBytes == 0) { \
      prefetch_ahead(weights + p * kPanelBytes, kAheadBytes);                     \
    }                                                                             \
    const __m512 w = load16<Type>(weights + p * kPanelBytes);                     \
    a##p = _mm512_fmadd_ps(x_a, w, a##p);                                         \
    if constexpr (Rows == 4) {                                                    \
      b##p = _mm512_fmadd_ps(x_b, w, b##p);                                       \
      c##p = _mm512_fmadd_ps(x_c, w, c##p);                                       \
      d##p = _mm512_fmadd_ps(x_d, w, d##p);                                       \
    }                                                                             \
  }
    OUTRIDER_SIX(OUTRIDER_PANEL)
#undef OUTRIDER_PANEL
  }
#define OUTRIDER_STORE(p)                                       \
  if constexpr (p < Panels) {                                   \
    _mm512_store_ps(t + kPanelRows * p, a##p);                  \
    if constexpr (Rows == 4) {                                  \
      _mm512_store_ps(t + kColumns + kPanelRows * p, b##p);     \
      _mm512_store_ps(t + 2 * kColumns + kPanelRows * p, c##p); \
      _mm512_store_ps(t + 3 * kColumns + kPanelRows * p, d##p); \
    }                                                           \
  }
  OUTRIDER_SIX(OUTRIDER_STORE)
#undef OUTRIDER_STORE
}

template <FloatType Type>
OUTRIDER_AVX512_INLINE void decode(const std::byte* weights, std::int64_t values, float* out) {
  for (std::int64_t i = 0; i < values; i += 16) {
    prefetch_ahead(weights + i * size_of(Type), kAheadBytes);
    _mm512_store_ps(out + i, load16<Type>(weights + i * size_of(Type)));
  }
}

// One strip for `rows` (at most kTileRows) rows of x. K is taken in slices that stay in L1 while all rows use them;
// 16-bit weights are decoded once per slice. A single row streams all of K with its chains in registers.
template <int Panels, FloatType Type>
OUTRIDER_AVX512 void strip_rows(const std::byte* weights, std::int64_t k, const float* x, std::int64_t ldx,
                                std::int64_t rows, float* tile) {
  constexpr std::int64_t kColumns = Panels * kPanelRows;
  if (rows == 1) {
    chain_rows<Panels, 1, Type, Reading::stream>(weights, x, ldx, k, tile);
    return;
  }
  alignas(64) float decoded[Type == FloatType::f32 ? 16 : kDenseDepth * kColumns];
  for (std::int64_t at = 0; at < k; at += kDenseDepth) {
    const std::int64_t depth = at + kDenseDepth < k ? kDenseDepth : k - at;
    std::int64_t r = 0;
    const std::byte* slice = weights + static_cast<std::size_t>(at * kColumns) * size_of(Type);
    if constexpr (Type == FloatType::f32) {
      chain_rows<Panels, 1, Type, Reading::stream>(slice, x + at, ldx, depth, tile);
      r = 1;
    } else {
      decode<Type>(slice, depth * kColumns, decoded);
      slice = reinterpret_cast<const std::byte*>(decoded);
    }
    for (; r + 4 <= rows; r += 4) {
      for (std::int64_t i = 0; i < 4; ++i) prefetch_slice(x + (r + i) * ldx + at, 2 * ldx);
      chain_rows<Panels, 4, FloatType::f32, Reading::cached>(slice, x + r * ldx + at, ldx, depth, tile + r * kColumns);
    }
    for (; r < rows; ++r) {
      chain_rows<Panels, 1, FloatType::f32, Reading::cached>(slice, x + r * ldx + at, ldx, depth, tile + r * kColumns);
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

}  // namespace outrider::linear::avx512

#endif  // __x86_64__
