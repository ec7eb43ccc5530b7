// AVX2: coded products of a few rows (decoding, verifying drafts). The weights stream from memory once, their codes are
// widened in registers and meet all rows there.
#ifdef __x86_64__

#include "kernels/cpu/linear_avx2_forms.h"

namespace outrider::linear::avx2 {
namespace {

constexpr std::int64_t kPanelRows = PackedMatrix::kPanelRows;
constexpr std::int64_t kStripRows = PackedMatrix::kStripRows;

// One panel's block of one group against the rows of a call.
struct FewRows {
  const std::byte* block;
  std::size_t head_bytes;  // scales and biases before the words
  std::size_t low_bytes;   // of the low plane
  FloatType scale_type;
  const std::int16_t* codes;  // [M][group]
  std::int64_t group;
  const float* s_and_sum;  // [M][2]
  float* t;                // [M][96]
};

// Asks for the lines of a unit a page ahead.
template <class F>
OUTRIDER_AVX2_INLINE void prefetch_unit(const std::byte* low, const std::byte* high) {
  for (int line = 0; line < F::kLowLines; ++line) prefetch_ahead(low + line * kLineBytes, kAheadBytes);
  if constexpr (F::kHigh != 0) prefetch_ahead(high, kAheadBytes);
}

// The order in which pairs are used: e2m1 looks up two of them at once.
template <class F>
constexpr int in_order(int p) {
  return F::kKind == PackedKind::e2m1 ? (p & 1) * 2 + (p >> 1) : p;
}

// Up to four rows: both halves of a panel at once, a broadcast pair serves two products.
template <class F, int M>
OUTRIDER_AVX2_INLINE void few_rows_whole(const FewRows& c) {
  const std::byte* low = c.block + c.head_bytes;
  const std::byte* high = low + c.low_bytes;
#define OUTRIDER_DECLARE(m)                                \
  [[maybe_unused]] __m256i lo##m = _mm256_setzero_si256(); \
  [[maybe_unused]] __m256i hi##m = _mm256_setzero_si256();
  OUTRIDER_FOUR(OUTRIDER_DECLARE)
#undef OUTRIDER_DECLARE
  const std::int16_t* const end = c.codes + c.group;
  for (const std::int16_t* at = c.codes; at != end; at += F::kUnitCodes) {
    prefetch_unit<F>(low, high);
    [[maybe_unused]] const __m256i high_lo = load_words(F::kHigh == 0 ? low : high);
    [[maybe_unused]] const __m256i high_hi = load_words((F::kHigh == 0 ? low : high) + 32);
#define OUTRIDER_ROW(m)                                                \
  if constexpr (m < M) {                                               \
    const __m256i pair = broadcast_pair(at + m * c.group + 2 * kPair); \
    lo##m = add_products(lo##m, weights_lo, pair);                     \
    hi##m = add_products(hi##m, weights_hi, pair);                     \
  }
#define OUTRIDER_PAIR(p)                                                          \
  if constexpr (p < F::kUnitPairs) {                                              \
    constexpr int kPair = in_order<F>(p);                                         \
    const std::byte* const line = low + kPair / F::kWordPairs * kLineBytes;       \
    const __m256i weights_lo = pair_of<F, kPair>(load_words(line), high_lo);      \
    const __m256i weights_hi = pair_of<F, kPair>(load_words(line + 32), high_hi); \
    OUTRIDER_FOUR(OUTRIDER_ROW)                                                   \
  }
    OUTRIDER_SIXTEEN_PAIRS(OUTRIDER_PAIR)
#undef OUTRIDER_PAIR
#undef OUTRIDER_ROW
    low += F::kLowLines * kLineBytes;
    high += kLineBytes;
  }
  const std::size_t half = 8 * size_of(c.scale_type);
  const __m256 scale_lo = load8(c.block, c.scale_type), scale_hi = load8(c.block + half, c.scale_type);
  __m256 bias_lo = _mm256_setzero_ps(), bias_hi = bias_lo;
  if constexpr (F::kKind == PackedKind::affine) {
    bias_lo = load8(c.block + 2 * half, c.scale_type);
    bias_hi = load8(c.block + 3 * half, c.scale_type);
  }
#define OUTRIDER_FINISH(m)                                                        \
  if constexpr (m < M) {                                                          \
    const RowScale row = row_scale(c.s_and_sum + 2 * m);                          \
    add_group<F::kKind>(lo##m, scale_lo, bias_lo, row, c.t + m * kStripRows);     \
    add_group<F::kKind>(hi##m, scale_hi, bias_hi, row, c.t + m * kStripRows + 8); \
  }
  OUTRIDER_FOUR(OUTRIDER_FINISH)
#undef OUTRIDER_FINISH
}

// Five to eight rows: one half of a panel (a half's words stay in L1 for the other), else the accumulators would spill.
template <class F, int M>
OUTRIDER_AVX2_INLINE void few_rows_half(const FewRows& c, int half) {
  const std::byte* low = c.block + c.head_bytes + 32 * half;
  const std::byte* high = low + c.low_bytes;
#define OUTRIDER_DECLARE(m) [[maybe_unused]] __m256i a##m = _mm256_setzero_si256();
  OUTRIDER_EIGHT(OUTRIDER_DECLARE)
#undef OUTRIDER_DECLARE
  const std::int16_t* const end = c.codes + c.group;
  for (const std::int16_t* at = c.codes; at != end; at += F::kUnitCodes) {
    if (half == 0) prefetch_unit<F>(low, high);
    [[maybe_unused]] const __m256i high_words = load_words(F::kHigh == 0 ? low : high);
#define OUTRIDER_ROW(m) \
  if constexpr (m < M) a##m = add_products(a##m, weights, broadcast_pair(at + m * c.group + 2 * kPair));
#define OUTRIDER_PAIR(p)                                                                                         \
  if constexpr (p < F::kUnitPairs) {                                                                             \
    constexpr int kPair = in_order<F>(p);                                                                        \
    const __m256i weights = pair_of<F, kPair>(load_words(low + kPair / F::kWordPairs * kLineBytes), high_words); \
    OUTRIDER_EIGHT(OUTRIDER_ROW)                                                                                 \
  }
    OUTRIDER_SIXTEEN_PAIRS(OUTRIDER_PAIR)
#undef OUTRIDER_PAIR
#undef OUTRIDER_ROW
    low += F::kLowLines * kLineBytes;
    high += kLineBytes;
  }
  const std::size_t bytes = 8 * size_of(c.scale_type);
  const __m256 scale = load8(c.block + half * bytes, c.scale_type);
  __m256 bias = _mm256_setzero_ps();
  if constexpr (F::kKind == PackedKind::affine) bias = load8(c.block + (2 + half) * bytes, c.scale_type);
#define OUTRIDER_FINISH(m) \
  if constexpr (m < M)     \
    add_group<F::kKind>(a##m, scale, bias, row_scale(c.s_and_sum + 2 * m), c.t + m * kStripRows + 8 * half);
  OUTRIDER_EIGHT(OUTRIDER_FINISH)
#undef OUTRIDER_FINISH
}

// M rows from `row` against one strip. The strip's blocks lie one after the other: a core reads one stream.
template <class F, int M>
OUTRIDER_AVX2 void few_rows_strip(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, std::int64_t row,
                                  float* y, std::int64_t ldy) {
  alignas(64) float tile[M * kStripRows];
  std::memset(tile, 0, sizeof tile);
  const std::int64_t panels = w.panels_of(strip);
  const std::size_t block_bytes = w.block_bytes();
  FewRows c{};
  c.block = w.data + w.offset(strip, 0, 0);
  c.head_bytes = w.head_bytes();
  c.low_bytes = static_cast<std::size_t>(w.group) * F::kLow / 32 * kLineBytes;
  c.scale_type = w.scale_type;
  c.group = w.group;
  const std::int64_t groups = w.groups();
  for (std::int64_t g = 0; g < groups; ++g) {
    c.codes = x.codes + (g * x.rows + row) * w.group;
    c.s_and_sum = x.scales + (g * x.rows + row) * 2;
    c.t = tile;
    prefetch_output(y + row * ldy + strip * kStripRows, ldy, M, g, groups);
    for (std::int64_t p = 0; p < panels; ++p, c.block += block_bytes, c.t += kPanelRows) {
      prefetch_ahead(c.block, kAheadBytes);
      if (c.head_bytes > kLineBytes) prefetch_ahead(c.block, kAheadBytes + kLineBytes);
      if constexpr (M <= 4) {
        few_rows_whole<F, M>(c);
      } else {
        few_rows_half<F, M>(c, 0);
        few_rows_half<F, M>(c, 1);
      }
    }
  }
  store_strip(w, strip, tile, kStripRows, M, y + row * ldy, ldy);
}

template <class F>
constexpr FewRowsStrip kFewRowsStrip[] = {few_rows_strip<F, 1>, few_rows_strip<F, 2>, few_rows_strip<F, 3>,
                                          few_rows_strip<F, 4>, few_rows_strip<F, 5>, few_rows_strip<F, 6>,
                                          few_rows_strip<F, 7>, few_rows_strip<F, 8>};

}  // namespace

FewRowsStrip few_rows_strip_of(const PackedMatrix& w, std::int64_t rows) {
#define OUTRIDER_RESULT(...) kFewRowsStrip<__VA_ARGS__>[rows - 1]
  OUTRIDER_WITH_FORM(w, OUTRIDER_RESULT)
#undef OUTRIDER_RESULT
}

}  // namespace outrider::linear::avx2

#endif  // __x86_64__
