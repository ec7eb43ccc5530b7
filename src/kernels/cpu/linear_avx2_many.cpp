// AVX2: coded products of many rows (prompts). The weights of a strip are widened to L1 once for all rows of a call.
#ifdef __x86_64__

#include "kernels/cpu/linear_avx2_forms.h"

namespace outrider::linear::avx2 {
namespace {

constexpr std::int64_t kPanelRows = PackedMatrix::kPanelRows;
constexpr std::int64_t kStripRows = PackedMatrix::kStripRows;

// Codes of K that one pass over the rows takes: 1 group of 64 or 128, 2 of 32, 4 of 16. A pass reads the accumulators
// from L2 and writes them back; its weights (12 KiB at 64 codes) share L1 with them. (128 codes were 2 to 10 % slower.)
constexpr std::int64_t kPassCodes = 64;
constexpr std::int64_t kSmallestGroup = 16;
constexpr std::int64_t kPassGroups = kPassCodes / kSmallestGroup;

// Some groups of a strip, widened: pairs of 16-bit weights [groups][G/2][panels][16], f32 scales and biases
// [groups][panels][16].
struct Widened {
  alignas(64) std::int32_t pairs[kMaxGroup / 2 * kStripRows];
  alignas(64) float scales[kPassGroups * kStripRows];
  alignas(64) float biases[kPassGroups * kStripRows];
};

// The pairs from P on of a unit, for eight rows.
template <class F, int P>
OUTRIDER_AVX2_INLINE void widen_pairs(const std::byte* low, __m256i words, __m256i high, std::int32_t* pairs,
                                      std::int64_t stride) {
  if constexpr (P < F::kUnitPairs) {
    if constexpr (P % F::kWordPairs == 0) words = load_words(low + P / F::kWordPairs * kLineBytes);
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + P * stride), pair_of<F, P>(words, high));
    widen_pairs<F, P + 1>(low, words, high, pairs, stride);
  }
}

template <class F>
OUTRIDER_AVX2 void widen_group(const PackedMatrix& w, const std::byte* block, std::int64_t panels, std::int32_t* pairs,
                               float* scales, float* biases) {
  const std::size_t block_bytes = w.block_bytes(), half = 8 * size_of(w.scale_type);
  const std::int64_t stride = panels * kPanelRows;  // of a pair
  for (std::int64_t p = 0; p < panels; ++p, block += block_bytes, pairs += kPanelRows) {
    for (int h = 0; h < 2; ++h, scales += 8, biases += 8) {
      _mm256_store_ps(scales, load8(block + h * half, w.scale_type));
      if constexpr (F::kKind == PackedKind::affine) {
        _mm256_store_ps(biases, load8(block + (2 + h) * half, w.scale_type));
      }
    }
    const std::byte* low = block + w.head_bytes();
    const std::byte* high = low + w.group * F::kLow / 32 * kLineBytes;
    std::int32_t* out = pairs;
    for (int at = 0; at < w.group; at += F::kUnitCodes, out += F::kUnitPairs * stride) {
      for (int h = 0; h < 2; ++h) {
        const __m256i words = load_words(low + 32 * h);
        const __m256i high_words = F::kHigh == 0 ? words : load_words(high + 32 * h);
        widen_pairs<F, 0>(low + 32 * h, words, high_words, out + 8 * h, stride);
      }
      low += F::kLowLines * kLineBytes;
      high += kLineBytes;
    }
  }
}

using WidenGroup = void (*)(const PackedMatrix&, const std::byte*, std::int64_t, std::int32_t*, float*, float*);
WidenGroup widen_group_of(const PackedMatrix& w) {
#define OUTRIDER_RESULT(...) widen_group<__VA_ARGS__>
  OUTRIDER_WITH_FORM(w, OUTRIDER_RESULT)
#undef OUTRIDER_RESULT
}

// The groups of one pass against `rows` coded rows.
struct Pass {
  const Widened& weights;
  std::int64_t groups, group;
  const std::int16_t* codes;  // of the first row and group; rows are `group` codes apart
  const float* s_and_sum;     // [2] of the first row and group
  std::int64_t all_rows;      // rows between the groups of one row
  std::int64_t rows;
  // The bytes of the next pass, asked for while this one computes, an equal share per row: asked for in one burst they
  // are more lines than a core can have in flight.
  const std::byte* next;
  std::size_t next_lines;
};

// One row at a time: 2*Panels accumulators share one broadcast pair and read the weights as memory operands. tile:
// [rows][Panels*16].
template <PackedKind Kind, int Panels>
OUTRIDER_AVX2 void many_rows_pass(const Pass& pass, float* tile) {
  const std::int64_t group = pass.group, groups = pass.groups, rows = pass.rows, all_rows = pass.all_rows;
  const Widened& widened = pass.weights;
  const std::int16_t* const all_codes = pass.codes;
  const float* const all_scales = pass.s_and_sum;
  const std::size_t share = (pass.next_lines + static_cast<std::size_t>(rows) - 1) / static_cast<std::size_t>(rows);
  const std::byte* next = pass.next;
  for (std::int64_t r = 0; r < rows; ++r, tile += Panels * kPanelRows) {
    for (std::size_t line = 0; line < share; ++line, next += kLineBytes) prefetch_ahead(next, 0);
    const std::int32_t* weights = widened.pairs;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t at = g * all_rows + r;
      const std::int16_t* codes = all_codes + at * group;
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
      const RowScale row = row_scale(all_scales + 2 * at);
      const float* const scales = widened.scales + g * Panels * kPanelRows;
      [[maybe_unused]] const float* const biases = widened.biases + g * Panels * kPanelRows;
#define OUTRIDER_FINISH(i)                                                                                  \
  if constexpr (i < 2 * Panels) {                                                                           \
    add_group<Kind>(a##i, _mm256_load_ps(scales + 8 * i),                                                   \
                    Kind == PackedKind::affine ? _mm256_load_ps(biases + 8 * i) : _mm256_setzero_ps(), row, \
                    tile + 8 * i);                                                                          \
  }
      OUTRIDER_TWELVE(OUTRIDER_FINISH)
#undef OUTRIDER_FINISH
    }
  }
}

using ManyRowsPass = void (*)(const Pass&, float*);
template <PackedKind Kind>
constexpr ManyRowsPass kManyRowsPass[] = {many_rows_pass<Kind, 1>, many_rows_pass<Kind, 2>, many_rows_pass<Kind, 3>,
                                          many_rows_pass<Kind, 4>, many_rows_pass<Kind, 5>, many_rows_pass<Kind, 6>};

OUTRIDER_AVX2 void tile_of_rows(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, Range rows, float* y,
                                std::int64_t ldy) {
  alignas(64) float tile[kTileRows * kStripRows];
  Widened widened;
  const std::int64_t panels = w.panels_of(strip), columns = panels * kPanelRows;
  const std::int64_t count = rows.end - rows.begin, groups = w.groups();
  const std::int64_t step = w.group < kPassCodes ? kPassCodes / w.group : 1;
  const WidenGroup widen = widen_group_of(w);
  const ManyRowsPass run =
      (w.kind == PackedKind::affine ? kManyRowsPass<PackedKind::affine> : kManyRowsPass<PackedKind::e2m1>)[panels - 1];
  std::memset(tile, 0, static_cast<std::size_t>(count * columns) * sizeof(float));
  float* const out = y + rows.begin * ldy + strip * kStripRows;
  for (std::int64_t g = 0; g < groups; g += step) {
    prefetch_output(out, ldy, count, g / step, (groups + step - 1) / step);
    const std::int64_t here = groups - g < step ? groups - g : step, at = g * x.rows + rows.begin;
    for (std::int64_t i = 0; i < here; ++i) {
      widen(w, w.data + w.offset(strip, g + i, 0), panels, widened.pairs + i * w.group / 2 * columns,
            widened.scales + i * columns, widened.biases + i * columns);
    }
    const std::size_t bytes = static_cast<std::size_t>(here * panels) * w.block_bytes();
    run({widened, here, w.group, x.codes + at * w.group, x.scales + at * 2, x.rows, count,
         w.data + w.offset(strip, g, 0) + bytes, bytes / kLineBytes},
        tile);
  }
  store_strip(w, strip, tile, columns, count, y + rows.begin * ldy, ldy);
}

}  // namespace

void many_rows_strip(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, Range rows, float* y,
                     std::int64_t ldy) {
  // Tiles of equal size: a short last one would pay the widening for few rows.
  const std::int64_t all = rows.end - rows.begin, tiles = (all + kTileRows - 1) / kTileRows;
  for (std::int64_t i = 0; i < tiles; ++i) {
    tile_of_rows(w, strip, x, {rows.begin + all * i / tiles, rows.begin + all * (i + 1) / tiles}, y, ldy);
  }
}

}  // namespace outrider::linear::avx2

#endif  // __x86_64__
