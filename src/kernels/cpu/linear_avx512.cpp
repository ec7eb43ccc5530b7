// AVX-512: products of affine weights with coded rows (vpmaddwd). The integer sums are exact, so their order is free;
// the f32 part follows numerics.md section 2 literally.
#ifdef __x86_64__

#include "kernels/cpu/linear_avx512.h"

#include "kernels/cpu/linear_avx2.h"
#include "kernels/cpu/linear_kernels.h"

namespace outrider {
namespace linear::avx512 {
namespace {

constexpr std::int64_t kPanelRows = PackedMatrix::kPanelRows;
constexpr std::int64_t kStripRows = PackedMatrix::kStripRows;

template <int Bits>
OUTRIDER_AVX512_INLINE __m512i code_mask() {
  return _mm512_set1_epi32(Bits == 4 ? 0x000F000F : 0x00FF00FF);
}

// One panel's block of one group against M rows: codes [M][group], s_and_sum [M][2], t [M][96].
template <int M, int Bits>
OUTRIDER_AVX512_INLINE void few_rows_panel(const std::byte* block, FloatType scale_type, const std::int16_t* codes,
                                           std::int64_t group, const float* s_and_sum, float* t) {
  const __m512i mask = code_mask<Bits>();
  const std::size_t scale_bytes = kPanelRows * size_of(scale_type);
  const std::byte* words = block + 2 * scale_bytes;
#define OUTRIDER_DECLARE(m) [[maybe_unused]] __m512i a##m = _mm512_setzero_si512();
  OUTRIDER_EIGHT(OUTRIDER_DECLARE)
#undef OUTRIDER_DECLARE
  const std::int16_t* const end = codes + group;
  for (const std::int16_t* at = codes; at != end; at += 32 / Bits, words += kLineBytes) {
    prefetch_ahead(words, kAheadBytes);
    const __m512i packed = _mm512_loadu_si512(words);
#define OUTRIDER_ROW(m) \
  if constexpr (m < M) a##m = add_products(a##m, weights, broadcast_pair(at + m * group + 2 * kPair));
#define OUTRIDER_PAIR(p)                                                                 \
  if constexpr (p < 16 / Bits) {                                                         \
    constexpr int kPair = p;                                                             \
    const __m512i weights = _mm512_and_si512(_mm512_srli_epi32(packed, Bits * p), mask); \
    OUTRIDER_EIGHT(OUTRIDER_ROW)                                                         \
  }
    OUTRIDER_FOUR_PAIRS(OUTRIDER_PAIR)
#undef OUTRIDER_PAIR
#undef OUTRIDER_ROW
  }
  const __m512 scale = load16(block, scale_type);
  const __m512 bias = load16(block + scale_bytes, scale_type);
#define OUTRIDER_FINISH(m) \
  if constexpr (m < M) add_group(a##m, scale, bias, s_and_sum + 2 * m, t + m * kStripRows);
  OUTRIDER_EIGHT(OUTRIDER_FINISH)
#undef OUTRIDER_FINISH
}

// M rows from `row` against one strip. The strip's blocks lie one after the other: a core reads one stream.
template <int M, int Bits>
OUTRIDER_AVX512 void few_rows_strip(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, std::int64_t row,
                                    float* y, std::int64_t ldy) {
  alignas(64) float tile[M * kStripRows];
  std::memset(tile, 0, sizeof tile);
  const std::int64_t panels = w.panels_of(strip);
  const std::size_t block_bytes = w.block_bytes();
  const std::byte* block = w.data + w.offset(strip, 0, 0);
  for (std::int64_t g = 0; g < w.groups(); ++g) {
    const std::int64_t at = g * x.rows + row;
    for (std::int64_t p = 0; p < panels; ++p, block += block_bytes) {
      prefetch_ahead(block, kAheadBytes);
      prefetch_ahead(block, kAheadBytes + kLineBytes);
      few_rows_panel<M, Bits>(block, w.scale_type, x.codes + at * w.group, w.group, x.scales + at * 2,
                              tile + p * kPanelRows);
    }
  }
  store_strip(w, strip, tile, kStripRows, M, y + row * ldy, ldy);
}

// A strip's group unpacked for many rows: pairs of 16-bit weights [G/2][panels][16], f32 scales and biases.
struct Unpacked {
  alignas(64) std::int32_t pairs[kMaxGroup / 2 * kStripRows];
  alignas(64) float scales[kStripRows];
  alignas(64) float biases[kStripRows];
};

template <int Bits>
OUTRIDER_AVX512 void unpack_group(const PackedMatrix& w, const std::byte* block, std::int64_t panels, Unpacked& out) {
  const __m512i mask = code_mask<Bits>();
  const std::size_t block_bytes = w.block_bytes();
  const std::size_t scale_bytes = kPanelRows * size_of(w.scale_type);
  const std::int64_t lines = w.group * Bits / 32;
  const std::int64_t stride = panels * kPanelRows;  // of a pair
  for (std::int64_t p = 0; p < panels; ++p, block += block_bytes) {
    _mm512_store_ps(out.scales + p * kPanelRows, load16(block, w.scale_type));
    _mm512_store_ps(out.biases + p * kPanelRows, load16(block + scale_bytes, w.scale_type));
    const std::byte* words = block + 2 * scale_bytes;
    std::int32_t* pairs = out.pairs + p * kPanelRows;
    for (std::int64_t i = 0; i < lines; ++i, words += kLineBytes, pairs += 16 / Bits * stride) {
      prefetch_ahead(words, kAheadBytes);
      const __m512i packed = _mm512_loadu_si512(words);
#define OUTRIDER_PAIR(j)       \
  if constexpr (j < 16 / Bits) \
    _mm512_store_si512(pairs + j * stride, _mm512_and_si512(_mm512_srli_epi32(packed, Bits * j), mask));
      OUTRIDER_FOUR(OUTRIDER_PAIR)
#undef OUTRIDER_PAIR
    }
  }
}

// One unpacked group against Rows (1 or 4) coded rows: Panels*Rows accumulators, each weight register serves all rows.
// tile: [Rows][Panels*16].
template <int Panels, int Rows>
OUTRIDER_AVX512_INLINE void many_rows_tile(const Unpacked& u, std::int64_t group, const std::int16_t* codes,
                                           const float* s_and_sum, float* tile) {
  const std::int32_t* weights = u.pairs;
#define OUTRIDER_DECLARE(p)                               \
  [[maybe_unused]] __m512i a##p = _mm512_setzero_si512(); \
  [[maybe_unused]] __m512i b##p = _mm512_setzero_si512(); \
  [[maybe_unused]] __m512i c##p = _mm512_setzero_si512(); \
  [[maybe_unused]] __m512i d##p = _mm512_setzero_si512();
  OUTRIDER_SIX(OUTRIDER_DECLARE)
#undef OUTRIDER_DECLARE
#pragma clang loop unroll_count(2)
  for (std::int64_t k = 0; k < group; k += 2, weights += Panels * kPanelRows) {
    const __m512i pair_a = broadcast_pair(codes + k);
    [[maybe_unused]] __m512i pair_b, pair_c, pair_d;
    if constexpr (Rows == 4) {
      pair_b = broadcast_pair(codes + group + k);
      pair_c = broadcast_pair(codes + 2 * group + k);
      pair_d = broadcast_pair(codes + 3 * group + k);
    }
#define OUTRIDER_PANEL(p)                                          \
  if constexpr (p < Panels) {                                      \
    const __m512i w = _mm512_load_si512(weights + kPanelRows * p); \
    a##p = add_products(a##p, w, pair_a);                          \
    if constexpr (Rows == 4) {                                     \
      b##p = add_products(b##p, w, pair_b);                        \
      c##p = add_products(c##p, w, pair_c);                        \
      d##p = add_products(d##p, w, pair_d);                        \
    }                                                              \
  }
    OUTRIDER_SIX(OUTRIDER_PANEL)
#undef OUTRIDER_PANEL
  }
  constexpr std::int64_t kColumns = Panels * kPanelRows;
#define OUTRIDER_FINISH(p)                                           \
  if constexpr (p < Panels) {                                        \
    const __m512 scale = _mm512_load_ps(u.scales + kPanelRows * p);  \
    const __m512 bias = _mm512_load_ps(u.biases + kPanelRows * p);   \
    float* t = tile + kPanelRows * p;                                \
    add_group(a##p, scale, bias, s_and_sum, t);                      \
    if constexpr (Rows == 4) {                                       \
      add_group(b##p, scale, bias, s_and_sum + 2, t + kColumns);     \
      add_group(c##p, scale, bias, s_and_sum + 4, t + 2 * kColumns); \
      add_group(d##p, scale, bias, s_and_sum + 6, t + 3 * kColumns); \
    }                                                                \
  }
  OUTRIDER_SIX(OUTRIDER_FINISH)
#undef OUTRIDER_FINISH
}

template <int Panels>
OUTRIDER_AVX512 void many_rows_group(const Unpacked& u, std::int64_t group, const std::int16_t* codes,
                                     const float* s_and_sum, std::int64_t rows, float* tile) {
  constexpr std::int64_t kColumns = Panels * kPanelRows;
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    many_rows_tile<Panels, 4>(u, group, codes + r * group, s_and_sum + 2 * r, tile + r * kColumns);
  }
  for (; r < rows; ++r) {
    many_rows_tile<Panels, 1>(u, group, codes + r * group, s_and_sum + 2 * r, tile + r * kColumns);
  }
}

using ManyRowsGroup = void (*)(const Unpacked&, std::int64_t, const std::int16_t*, const float*, std::int64_t, float*);
constexpr ManyRowsGroup kManyRowsGroup[] = {many_rows_group<1>, many_rows_group<2>, many_rows_group<3>,
                                            many_rows_group<4>, many_rows_group<5>, many_rows_group<6>};

template <int Bits>
OUTRIDER_AVX512 void many_rows_strip(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, Range rows,
                                     float* y, std::int64_t ldy) {
  alignas(64) float tile[kTileRows * kStripRows];
  Unpacked unpacked;
  const std::int64_t panels = w.panels_of(strip);
  const std::int64_t count = rows.end - rows.begin;
  std::memset(tile, 0, static_cast<std::size_t>(count * panels * kPanelRows) * sizeof(float));
  for (std::int64_t g = 0; g < w.groups(); ++g) {
    unpack_group<Bits>(w, w.data + w.offset(strip, g, 0), panels, unpacked);
    const std::int64_t at = g * x.rows + rows.begin;
    kManyRowsGroup[panels - 1](unpacked, w.group, x.codes + at * w.group, x.scales + at * 2, count, tile);
  }
  store_strip(w, strip, tile, panels * kPanelRows, count, y + rows.begin * ldy, ldy);
}

using FewRowsStrip = void (*)(const PackedMatrix&, std::int64_t, const CodedRows&, std::int64_t, float*, std::int64_t);
template <int Bits>
constexpr FewRowsStrip kFewRowsStrip[] = {few_rows_strip<1, Bits>, few_rows_strip<2, Bits>, few_rows_strip<3, Bits>,
                                          few_rows_strip<4, Bits>, few_rows_strip<5, Bits>, few_rows_strip<6, Bits>,
                                          few_rows_strip<7, Bits>, few_rows_strip<8, Bits>};

}  // namespace

void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy) {
  const bool four_bits = w.bits == 4;
  const std::int64_t count = rows.end - rows.begin;
  if (count <= 0) return;
  for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
    if (count <= kFewRows) {
      (four_bits ? kFewRowsStrip<4> : kFewRowsStrip<8>)[count - 1](w, strip, x, rows.begin, y, ldy);
      continue;
    }
    for (std::int64_t row = rows.begin; row < rows.end; row += kTileRows) {
      const Range tile{row, row + kTileRows < rows.end ? row + kTileRows : rows.end};
      (four_bits ? many_rows_strip<4> : many_rows_strip<8>)(w, strip, x, tile, y, ldy);
    }
  }
}

}  // namespace linear::avx512

void fill_linear_kernels_avx512(KernelTable& table) {
  table.code_rows = linear::avx512::code_rows;
  table.product = linear::avx512::product;
  table.dense_product = linear::avx512::dense_product;
  table.unpack_row = linear::avx2::unpack_row;  // AVX-512 F implies AVX2, FMA and F16C; one row is bound by memory
}

}  // namespace outrider

#endif  // __x86_64__
