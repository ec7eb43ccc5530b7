// AVX2: products of affine weights with coded rows (vpmaddwd). The integer sums are exact, so their order is free; the
// f32 part follows numerics.md section 2 literally.
#ifdef __x86_64__

#include "kernels/cpu/linear_avx2.h"

#include "kernels/cpu/linear_kernels.h"

namespace outrider {
namespace linear::avx2 {
namespace {

constexpr std::int64_t kPanelRows = PackedMatrix::kPanelRows;
constexpr std::int64_t kStripRows = PackedMatrix::kStripRows;

template <int Bits>
OUTRIDER_AVX2_INLINE __m256i code_mask() {
  return _mm256_set1_epi32(Bits == 4 ? 0x000F000F : 0x00FF00FF);
}

// One panel's block of one group against the rows of a few-row call.
struct FewRows {
  const std::byte* block;
  std::size_t scale_bytes;  // of 16 scales
  FloatType scale_type;
  std::int64_t lines;         // G*b/32
  const std::int16_t* codes;  // [M][group]
  std::int64_t group;
  const float* s_and_sum;  // [M][2]
  float* t;                // [M][96]
};

// Up to four rows: both halves of a panel at once, a broadcast pair serves two products.
template <int M, int Bits>
OUTRIDER_AVX2_INLINE void few_rows_whole(const FewRows& c) {
  const __m256i mask = code_mask<Bits>();
  const std::byte* words = c.block + 2 * c.scale_bytes;
  const std::int16_t* codes = c.codes;
#define OUTRIDER_DECLARE(m)                                \
  [[maybe_unused]] __m256i lo##m = _mm256_setzero_si256(); \
  [[maybe_unused]] __m256i hi##m = _mm256_setzero_si256();
  OUTRIDER_FOUR(OUTRIDER_DECLARE)
#undef OUTRIDER_DECLARE
  for (std::int64_t i = 0; i < c.lines; ++i, words += kLineBytes, codes += 32 / Bits) {
    prefetch_ahead(words, kAheadBytes);
    const __m256i low_half = load_words(words);
    const __m256i high_half = load_words(words + 32);
#define OUTRIDER_ROW(m)                                                   \
  if constexpr (m < M) {                                                  \
    const __m256i pair = broadcast_pair(codes + m * c.group + 2 * kPair); \
    lo##m = add_products(lo##m, low, pair);                               \
    hi##m = add_products(hi##m, high, pair);                              \
  }
#define OUTRIDER_PAIR(p)                                                                 \
  if constexpr (p < 16 / Bits) {                                                         \
    constexpr int kPair = p;                                                             \
    const __m256i low = _mm256_and_si256(_mm256_srli_epi32(low_half, Bits * p), mask);   \
    const __m256i high = _mm256_and_si256(_mm256_srli_epi32(high_half, Bits * p), mask); \
    OUTRIDER_FOUR(OUTRIDER_ROW)                                                          \
  }
    OUTRIDER_FOUR_PAIRS(OUTRIDER_PAIR)
#undef OUTRIDER_PAIR
#undef OUTRIDER_ROW
  }
  const std::size_t half = c.scale_bytes / 2;
  const __m256 scale_lo = load8(c.block, c.scale_type), scale_hi = load8(c.block + half, c.scale_type);
  const __m256 bias_lo = load8(c.block + 2 * half, c.scale_type), bias_hi = load8(c.block + 3 * half, c.scale_type);
#define OUTRIDER_FINISH(m)                                                              \
  if constexpr (m < M) {                                                                \
    add_group(lo##m, scale_lo, bias_lo, c.s_and_sum + 2 * m, c.t + m * kStripRows);     \
    add_group(hi##m, scale_hi, bias_hi, c.s_and_sum + 2 * m, c.t + m * kStripRows + 8); \
  }
  OUTRIDER_FOUR(OUTRIDER_FINISH)
#undef OUTRIDER_FINISH
}

// Five to eight rows: one half of a panel (a half's words stay in L1 for the other), else the accumulators would spill.
template <int M, int Bits>
OUTRIDER_AVX2_INLINE void few_rows_half(const FewRows& c, int half) {
  const __m256i mask = code_mask<Bits>();
  const std::byte* words = c.block + 2 * c.scale_bytes + 32 * half;
  const std::int16_t* codes = c.codes;
#define OUTRIDER_DECLARE(m) [[maybe_unused]] __m256i a##m = _mm256_setzero_si256();
  OUTRIDER_EIGHT(OUTRIDER_DECLARE)
#undef OUTRIDER_DECLARE
  for (std::int64_t i = 0; i < c.lines; ++i, words += kLineBytes, codes += 32 / Bits) {
    if (half == 0) prefetch_ahead(words, kAheadBytes);
    const __m256i packed = load_words(words);
#define OUTRIDER_ROW(m) \
  if constexpr (m < M) a##m = add_products(a##m, weights, broadcast_pair(codes + m * c.group + 2 * kPair));
#define OUTRIDER_PAIR(p)                                                                 \
  if constexpr (p < 16 / Bits) {                                                         \
    constexpr int kPair = p;                                                             \
    const __m256i weights = _mm256_and_si256(_mm256_srli_epi32(packed, Bits * p), mask); \
    OUTRIDER_EIGHT(OUTRIDER_ROW)                                                         \
  }
    OUTRIDER_FOUR_PAIRS(OUTRIDER_PAIR)
#undef OUTRIDER_PAIR
#undef OUTRIDER_ROW
  }
  const std::size_t bytes = c.scale_bytes / 2;
  const __m256 scale = load8(c.block + half * bytes, c.scale_type);
  const __m256 bias = load8(c.block + (2 + half) * bytes, c.scale_type);
#define OUTRIDER_FINISH(m) \
  if constexpr (m < M) add_group(a##m, scale, bias, c.s_and_sum + 2 * m, c.t + m * kStripRows + 8 * half);
  OUTRIDER_EIGHT(OUTRIDER_FINISH)
#undef OUTRIDER_FINISH
}

// M rows from `row` against one strip. The strip's blocks lie one after the other: a core reads one stream.
template <int M, int Bits>
OUTRIDER_AVX2 void few_rows_strip(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, std::int64_t row,
                                  float* y, std::int64_t ldy) {
  alignas(64) float tile[M * kStripRows];
  std::memset(tile, 0, sizeof tile);
  const std::int64_t panels = w.panels_of(strip);
  const std::size_t block_bytes = w.block_bytes();
  FewRows c{};
  c.block = w.data + w.offset(strip, 0, 0);
  c.scale_bytes = kPanelRows * size_of(w.scale_type);
  c.scale_type = w.scale_type;
  c.lines = w.group * Bits / 32;
  c.group = w.group;
  for (std::int64_t g = 0; g < w.groups(); ++g) {
    c.codes = x.codes + (g * x.rows + row) * w.group;
    c.s_and_sum = x.scales + (g * x.rows + row) * 2;
    c.t = tile;
    for (std::int64_t p = 0; p < panels; ++p, c.block += block_bytes, c.t += kPanelRows) {
      prefetch_ahead(c.block, kAheadBytes);
      prefetch_ahead(c.block, kAheadBytes + kLineBytes);
      if constexpr (M <= 4) {
        few_rows_whole<M, Bits>(c);
      } else {
        few_rows_half<M, Bits>(c, 0);
        few_rows_half<M, Bits>(c, 1);
      }
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
OUTRIDER_AVX2 void unpack_group(const PackedMatrix& w, const std::byte* block, std::int64_t panels, Unpacked& out) {
  const __m256i mask = code_mask<Bits>();
  const std::size_t block_bytes = w.block_bytes();
  const std::size_t half = kPanelRows * size_of(w.scale_type) / 2;
  const std::int64_t lines = w.group * Bits / 32;
  const std::int64_t stride = panels * kPanelRows;  // of a pair
  for (std::int64_t p = 0; p < panels; ++p, block += block_bytes) {
    for (int h = 0; h < 2; ++h) {
      _mm256_store_ps(out.scales + p * kPanelRows + 8 * h, load8(block + h * half, w.scale_type));
      _mm256_store_ps(out.biases + p * kPanelRows + 8 * h, load8(block + (2 + h) * half, w.scale_type));
    }
    const std::byte* words = block + 4 * half;
    std::int32_t* pairs = out.pairs + p * kPanelRows;
    for (std::int64_t i = 0; i < lines; ++i, words += kLineBytes, pairs += 16 / Bits * stride) {
      prefetch_ahead(words, kAheadBytes);
      for (int h = 0; h < 2; ++h) {
        const __m256i packed = load_words(words + 32 * h);
#define OUTRIDER_PAIR(j)                                                            \
  if constexpr (j < 16 / Bits) {                                                    \
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + j * stride + 8 * h),      \
                       _mm256_and_si256(_mm256_srli_epi32(packed, Bits* j), mask)); \
  }
        OUTRIDER_FOUR_PAIRS(OUTRIDER_PAIR)
#undef OUTRIDER_PAIR
      }
    }
  }
}

// One unpacked group against `rows` coded rows, one at a time: 2*Panels accumulators share one broadcast pair and read
// the weights as memory operands. tile: [rows][Panels*16].
template <int Panels>
OUTRIDER_AVX2 void many_rows_group(const Unpacked& u, std::int64_t group, const std::int16_t* codes,
                                   const float* s_and_sum, std::int64_t rows, float* tile) {
  for (std::int64_t r = 0; r < rows; ++r, codes += group, s_and_sum += 2, tile += Panels * kPanelRows) {
    const std::int32_t* weights = u.pairs;
#define OUTRIDER_DECLARE(i) [[maybe_unused]] __m256i a##i = _mm256_setzero_si256();
    OUTRIDER_TWELVE(OUTRIDER_DECLARE)
#undef OUTRIDER_DECLARE
#pragma clang loop unroll_count(4)
    for (std::int64_t k = 0; k < group; k += 2, weights += Panels * kPanelRows) {
      const __m256i pair = broadcast_pair(codes + k);
#define OUTRIDER_HALF(i)        \
  if constexpr (i < 2 * Panels) \
    a##i = add_products(a##i, _mm256_load_si256(reinterpret_cast<const __m256i*>(weights + 8 * i)), pair);
      OUTRIDER_TWELVE(OUTRIDER_HALF)
#undef OUTRIDER_HALF
    }
#define OUTRIDER_FINISH(i)      \
  if constexpr (i < 2 * Panels) \
    add_group(a##i, _mm256_load_ps(u.scales + 8 * i), _mm256_load_ps(u.biases + 8 * i), s_and_sum, tile + 8 * i);
    OUTRIDER_TWELVE(OUTRIDER_FINISH)
#undef OUTRIDER_FINISH
  }
}

using ManyRowsGroup = void (*)(const Unpacked&, std::int64_t, const std::int16_t*, const float*, std::int64_t, float*);
constexpr ManyRowsGroup kManyRowsGroup[] = {many_rows_group<1>, many_rows_group<2>, many_rows_group<3>,
                                            many_rows_group<4>, many_rows_group<5>, many_rows_group<6>};

template <int Bits>
OUTRIDER_AVX2 void many_rows_strip(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, Range rows, float* y,
                                   std::int64_t ldy) {
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

}  // namespace linear::avx2

void fill_linear_kernels_avx2(KernelTable& table) {
  table.code_rows = linear::avx2::code_rows;
  table.product = linear::avx2::product;
  table.dense_product = linear::avx2::dense_product;
  table.unpack_row = linear::avx2::unpack_row;
}

}  // namespace outrider

#endif  // __x86_64__
