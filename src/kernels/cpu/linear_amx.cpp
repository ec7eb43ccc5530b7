// AMX: products of coded rows with affine and e2m1 weights in two exact byte passes (numerics.md section 3): tiles sum
// q*high and q*low of a group in int32, I = (sum of q*high << 8) + sum of q*low, then the f32 part on 512-bit
// registers.
#ifdef __x86_64__

#include "kernels/cpu/linear_amx.h"

#include "kernels/cpu/linear_avx512.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/linear_vnni.h"

#define OUTRIDER_AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-int8")))
#define OUTRIDER_AMX_INLINE \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-int8"), always_inline)) inline

namespace outrider {
namespace linear::amx {
namespace {

using namespace avx512;

constexpr std::int64_t kPanelRows = PackedMatrix::kPanelRows;
constexpr std::int64_t kStripRows = PackedMatrix::kStripRows;
constexpr std::int64_t kTileM = 16;      // input rows of a tile
constexpr std::int64_t kTileBytes = 64;  // of a row of a tile
// Rows of one pass over a strip, the most that the device asks for at once: weights are unpacked once in each.
constexpr std::int64_t kPassRows = 128;
// Columns of K between two visits of the same accumulators. Their weights (12 KiB as bytes) and the codes of sixteen
// rows (4 KiB) stay in L1 while every panel meets every row; 256 columns do not.
constexpr std::int64_t kChunk = kMaxGroup;
constexpr std::int64_t kMostGroups = 8;  // of a chunk: groups are 16 wide or more

// --- Weights as tiles ---

// Eight codes of sixteen rows as bytes: codes 0, 4, 1, 5 and codes 2, 6, 3, 7 (kPlaneOrder).
struct EightCodes {
  __m512i even;
  __m512i odd;
};

// Codes 8*C .. 8*C+7 of a plane of 1, 2 or 4 bits.
template <int Bits, int C>
OUTRIDER_AVX512_INLINE EightCodes plane_bytes(const std::byte* words) {
  constexpr int kWithin = C % (4 / Bits);  // eights before it in the same line
  const __m512i mask = _mm512_set1_epi8((1 << Bits) - 1);
  __m512i x = _mm512_loadu_si512(words + C * Bits / 4 * kLineBytes);
  if constexpr (kWithin != 0) x = _mm512_srli_epi32(x, 4 * Bits * kWithin);
  // Each half word holds four codes from bit 0: the first two to its low byte, the other two to its high byte.
  if constexpr (Bits != 4) x = select_bits(_mm512_set1_epi16(0xFF), x, _mm512_slli_epi32(x, 8 - 2 * Bits));
  return {_mm512_and_si512(x, mask), _mm512_and_si512(_mm512_srli_epi32(x, Bits), mask)};
}

template <class F, int C>
OUTRIDER_AVX512_INLINE EightCodes eight_codes(const Words& words) {
  constexpr int kLow = F::kPlanes.low, kHigh = F::kPlanes.high;
  if constexpr (kLow == 8) {
    const __m512i even_bytes = _mm512_set1_epi16(0xFF);
    const __m512i first = _mm512_loadu_si512(words.low + 2 * C * kLineBytes);
    const __m512i second = _mm512_loadu_si512(words.low + (2 * C + 1) * kLineBytes);
    return {select_bits(even_bytes, first, _mm512_slli_epi32(second, 8)),
            select_bits(even_bytes, _mm512_srli_epi32(first, 8), second)};
  } else {
    EightCodes codes = plane_bytes<kLow, C>(words.low);
    if constexpr (kHigh != 0) {
      const EightCodes high = plane_bytes<kHigh, C>(words.high);
      codes.even = _mm512_or_si512(codes.even, _mm512_slli_epi32(high.even, kLow));
      codes.odd = _mm512_or_si512(codes.odd, _mm512_slli_epi32(high.odd, kLow));
    }
    if constexpr (F::kKind == PackedKind::e2m1) {
      const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Doubled)));
      codes = {_mm512_shuffle_epi8(values, codes.even), _mm512_shuffle_epi8(values, codes.odd)};
    }
    return codes;
  }
}

template <class F, int C>
OUTRIDER_AVX512_INLINE void unpack_eight(const Words& words, std::byte* out) {
  const EightCodes codes = eight_codes<F, C>(words);
  _mm512_store_si512(out + 2 * C * kTileBytes, codes.even);
  _mm512_store_si512(out + (2 * C + 1) * kTileBytes, codes.odd);
}

template <class F, int... C>
OUTRIDER_AVX512_INLINE void unpack_unit(const Words& words, std::byte* out, std::integer_sequence<int, C...>) {
  (unpack_eight<F, C>(words, out), ...);
}

// What the f32 part of a chunk reads.
struct Terms {
  Heads heads[kMostGroups];
  // s and the code sums of a pass of fewer than sixteen rows, zeros after them.
  alignas(64) float s_and_sum[kMostGroups][2 * kTileM];
};

// The bytes of `groups` groups of a strip as tiles: [group][panel][G/4][16][4], one or two tiles a panel.
template <class F>
OUTRIDER_AVX512 void unpack_chunk(const PackedMatrix& w, const std::byte* block, std::int64_t groups,
                                  std::int64_t panels, std::byte* bytes, Terms& terms) {
  const std::size_t block_bytes = w.block_bytes(), head_bytes = w.head_bytes();
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t p = 0; p < panels; ++p, block += block_bytes) {
      unpack_head<F::kKind>(block, w.scale_type, p, terms.heads[g]);
      Words words = words_of<F>(block, head_bytes, w.group);
      for (int k = 0; k < w.group; k += F::kUnit, bytes += F::kUnit * kPanelRows, next_unit<F>(words)) {
        unpack_unit<F>(words, bytes, std::make_integer_sequence<int, F::kUnit / 8>{});
      }
    }
  }
}

// --- Tiles ---

// Tiles 0, 1: sums of q*high and of q*low; 2, 3: weights; 4, 5: planes of the input rows.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

OUTRIDER_AMX void configure_tiles(std::int64_t rows, int group) {
  const int depth = group < kTileBytes ? group : static_cast<int>(kTileBytes);  // K of a tile
  TileShapes shapes;
  for (int i = 0; i < 6; ++i) {
    const bool weights = i == 2 || i == 3;
    shapes.rows[i] = static_cast<std::uint8_t>(weights ? depth / 4 : rows);
    shapes.row_bytes[i] = static_cast<std::uint16_t>(i < 4 ? kTileBytes : depth);
  }
  _tile_loadconfig(&shapes);
}

// One panel and group against the rows of a tile: first the high bytes, then the low ones with the weights still in
// tiles 2 and 3. Halves: tiles that the group takes.
template <PackedKind Kind, int Halves>
OUTRIDER_AMX_INLINE void multiply_high(const std::byte* weights, const std::byte* planes, std::int64_t group) {
  _tile_loadd(4, planes, 2 * group);
  _tile_loadd(2, weights, kTileBytes);
  _tile_zero(0);
  if constexpr (Kind == PackedKind::e2m1) {
    _tile_dpbssd(0, 4, 2);
  } else {
    _tile_dpbsud(0, 4, 2);
    if constexpr (Halves == 2) {
      _tile_loadd(5, planes + kTileBytes, 2 * group);
      _tile_loadd(3, weights + kTileBytes * kPanelRows, kTileBytes);
      _tile_dpbsud(0, 5, 3);
    }
  }
}

template <PackedKind Kind, int Halves>
OUTRIDER_AMX_INLINE void multiply_low(const std::byte* planes, std::int64_t group) {
  _tile_loadd(5, planes + group, 2 * group);
  _tile_zero(1);
  if constexpr (Kind == PackedKind::e2m1) {
    _tile_dpbusd(1, 5, 2);
  } else {
    _tile_dpbuud(1, 5, 2);
    if constexpr (Halves == 2) {
      _tile_loadd(4, planes + group + kTileBytes, 2 * group);
      _tile_dpbuud(1, 4, 3);
    }
  }
}

// The sums of a tile's rows as they leave the tiles: [row][16].
struct Sums {
  alignas(64) std::int32_t high[kTileM * kPanelRows];
  alignas(64) std::int32_t low[kTileM * kPanelRows];
};

// --- The f32 part ---

// float((high << 8) + low), without the conversion: beside tile instructions a core has one port for conversions,
// multiplications and shifts of 512 bits, but two for additions (measured). An integer added to the bits of a large
// float adds to its value: 3*2^30 + 256*high (|high| < 2^22) and kLowOne + low are exact, so is the difference of the
// first and both constants, and the one addition that rounds gives the float nearest to the sum.
constexpr std::int32_t kHighBits = 0x4f400000;  // 3*2^30, whose last bit counts 256
constexpr float kHighOne = 3221225472.0F;
// The last bit counts 1. Unsigned low bytes with unsigned weights sum to 0 .. 2^23 - 1 (128*255*255 is less); with
// those of e2m1 to less than 2^22 of either sign.
template <PackedKind Kind>
constexpr std::int32_t kLowBits = Kind == PackedKind::e2m1 ? 0x4b400000 : 0x4b000000;
template <PackedKind Kind>
constexpr float kLowOne = Kind == PackedKind::e2m1 ? 12582912.0F : 8388608.0F;

template <PackedKind Kind>
OUTRIDER_AVX512_INLINE __m512 float_of(__m512i high, __m512i low) {
  const __m512 first = _mm512_castsi512_ps(_mm512_add_epi32(high, _mm512_set1_epi32(kHighBits)));
  const __m512 second = _mm512_castsi512_ps(_mm512_add_epi32(low, _mm512_set1_epi32(kLowBits<Kind>)));
  return _mm512_add_ps(_mm512_sub_ps(first, _mm512_set1_ps(kHighOne + kLowOne<Kind>)), second);
}

// A panel and group whose sums are in tiles or in memory. The accumulators t [16][16] of a tile's rows and a panel stay
// in registers from the first group of a chunk to its last.
struct Step {
  const Heads* heads;
  std::int64_t panel;
  const float* s_and_sum;  // [16][2]
  float* t;                // [16][16] between chunks
  bool first, last;        // group of the chunk
};
using Accumulators = __m512[kTileM];
using AllRows = std::make_integer_sequence<int, kTileM>;

template <int... R>
OUTRIDER_AVX512_INLINE void load(const float* from, Accumulators& t, std::integer_sequence<int, R...>) {
  ((t[R] = _mm512_load_ps(from + R * kPanelRows)), ...);
}
template <int... R>
OUTRIDER_AVX512_INLINE void store(const Accumulators& t, float* to, std::integer_sequence<int, R...>) {
  (_mm512_store_ps(to + R * kPanelRows, t[R]), ...);
}

template <PackedKind Kind, int Row>
OUTRIDER_AVX512_INLINE void finish_row(const Sums& sums, const Head<Kind>& head, const float* s_and_sum, __m512& t) {
  t = add_group(
      float_of<Kind>(_mm512_load_si512(sums.high + Row * kPanelRows), _mm512_load_si512(sums.low + Row * kPanelRows)),
      head, s_and_sum + 2 * Row, t);
}

// Four rows of a step, First and those after it. Their order among the tile instructions is meant: the compiler must
// not gather them.
template <PackedKind Kind, int First>
OUTRIDER_AVX512_INLINE void finish_four(const Step& step, const Sums& sums, const Head<Kind>& head, Accumulators& t) {
  finish_row<Kind, First>(sums, head, step.s_and_sum, t[First]);
  finish_row<Kind, First + 1>(sums, head, step.s_and_sum, t[First + 1]);
  finish_row<Kind, First + 2>(sums, head, step.s_and_sum, t[First + 2]);
  finish_row<Kind, First + 3>(sums, head, step.s_and_sum, t[First + 3]);
  asm volatile("" ::: "memory");
}

// What is under way between two steps: one panel's sums are in the tiles, those of the panel before in `full`.
struct Pipeline {
  Step multiplied, stored;
  Sums* full;
  Sums* free;
};

// Multiplies a panel, stores the sums of the one before and takes the one before that through the f32 part, four rows
// between two groups of tile instructions: a scheduler filled with f32 work would keep the tiles waiting, and neither
// the latency of a product nor that of a store is waited for.
template <PackedKind Kind, int Halves>
OUTRIDER_AMX_INLINE void advance(const std::byte* weights, const std::byte* planes, std::int64_t group,
                                 const Step& next, Pipeline& line, Accumulators& t) {
  const Step& step = line.stored;
  const Sums& sums = *line.full;
  if (step.first) load(step.t, t, AllRows{});
  const Head<Kind> head = head_of<Kind>(*step.heads, step.panel);
  _tile_stored(0, line.free->high, kTileBytes);
  finish_four<Kind, 0>(step, sums, head, t);
  multiply_high<Kind, Halves>(weights, planes, group);
  finish_four<Kind, 4>(step, sums, head, t);
  _tile_stored(1, line.free->low, kTileBytes);
  finish_four<Kind, 8>(step, sums, head, t);
  multiply_low<Kind, Halves>(planes, group);
  finish_four<Kind, 12>(step, sums, head, t);
  if (step.last) store(t, step.t, AllRows{});
  std::swap(line.full, line.free);
  line.stored = line.multiplied;
  line.multiplied = next;
}

// --- Strips ---

// Rows [begin, begin + count) against one strip.
struct Pass {
  const PackedMatrix& w;
  const CodedRows& x;
  std::int64_t strip, panels;
  std::int64_t begin, count;
  float* y;  // of row `begin` and the strip's first output
  std::int64_t ldy;

  std::int64_t tile_rows() const { return count < kTileM ? count : kTileM; }
  std::int64_t blocks() const { return (count + kTileM - 1) / kTileM; }
  // The first row of a block, counted from `begin`: the last block overlaps the one before and repeats its rows.
  std::int64_t row_of(std::int64_t block) const {
    return block * kTileM + tile_rows() <= count ? block * kTileM : count - tile_rows();
  }
  // Fewer rows than a tile has: what is read for sixteen is a copy.
  bool narrow() const { return count < kTileM; }
};

// Groups [groups) of a strip, unpacked, against the rows of a pass. tile: [block][6 panels][16][16]. Each step asks for
// a few lines of the next chunk's weights; asking for the next block's codes too cost 1 to 5 % (docs/refused.md).
template <class F, int Halves>
OUTRIDER_AMX_INLINE void multiply_chunk(const Pass& pass, Range groups, const std::byte* bytes, const Terms& terms,
                                        float* tile, Pipeline& line, Accumulators& t) {
  const PackedMatrix& w = pass.w;
  const CodedRows& x = pass.x;
  const std::int64_t panels = pass.panels, blocks = pass.blocks(), group = w.group;
  const std::int64_t count = groups.end - groups.begin;
  const std::byte* const packed = w.data + w.offset(pass.strip, groups.begin, 0);
  const std::size_t packed_bytes = static_cast<std::size_t>(count * panels) * w.block_bytes();
  const std::size_t part = packed_bytes / static_cast<std::size_t>(count * panels * blocks) / kLineBytes + 1;
  std::size_t packed_ahead = packed_bytes;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t row = pass.row_of(block);
    for (std::int64_t p = 0; p < panels; ++p) {
      for (std::int64_t g = 0; g < count; ++g) {
        const std::int64_t at = (groups.begin + g) * x.rows + pass.begin + row;
        const auto* planes = reinterpret_cast<const std::byte*>(x.codes + at * group);
        for (std::size_t i = 0; i < part; ++i, packed_ahead += kLineBytes) prefetch_ahead(packed, packed_ahead);
        advance<F::kKind, Halves>(
            bytes + (g * panels + p) * group * kPanelRows, planes, group,
            {&terms.heads[g], p, pass.narrow() ? terms.s_and_sum[g] : x.scales + at * 2,
             tile + (block * PackedMatrix::kStripPanels + p) * kTileM * kPanelRows, g == 0, g + 1 == count},
            line, t);
      }
    }
  }
}

// The sums still in tiles and in memory.
template <PackedKind Kind>
OUTRIDER_AMX_INLINE void drain(Pipeline& line, Accumulators& t) {
  for (int i = 0; i < 2; ++i) {
    const Step& step = line.stored;
    const Head<Kind> head = head_of<Kind>(*step.heads, step.panel);
    _tile_stored(0, line.free->high, kTileBytes);
    _tile_stored(1, line.free->low, kTileBytes);
    if (step.first) load(step.t, t, AllRows{});
    finish_four<Kind, 0>(step, *line.full, head, t);
    finish_four<Kind, 4>(step, *line.full, head, t);
    finish_four<Kind, 8>(step, *line.full, head, t);
    finish_four<Kind, 12>(step, *line.full, head, t);
    if (step.last) store(t, step.t, AllRows{});
    std::swap(line.full, line.free);
    line.stored = line.multiplied;
  }
}

// Copies the accumulators to y, leaving out the outputs beyond N.
OUTRIDER_AVX512 void store_output(const Pass& pass, const float* tile) {
  const std::int64_t columns = strip_columns(pass.w, pass.strip), rows = pass.tile_rows();
  for (std::int64_t block = 0; block < pass.blocks(); ++block, tile += kTileM * kStripRows) {
    for (std::int64_t r = 0; r < rows; ++r) {
      float* const y = pass.y + (pass.row_of(block) + r) * pass.ldy;
      for (std::int64_t column = 0; column < columns; column += kPanelRows) {
        const std::int64_t left = columns - column;
        const auto mask = static_cast<__mmask16>(left < kPanelRows ? (1 << left) - 1 : 0xffff);
        _mm512_mask_storeu_ps(y + column, mask, _mm512_load_ps(tile + (column * kTileM + r * kPanelRows)));
      }
    }
  }
}

// The f32 part lags by two steps, and a chunk may have only one, hence the terms of three chunks. It begins with two
// steps of nothing, whose accumulators are never stored.
template <class F, int Halves>
OUTRIDER_AMX void multiply_pass(const Pass& pass) {
  alignas(64) float tile[kPassRows * kStripRows];
  alignas(64) std::byte bytes[kChunk * kStripRows];
  Terms terms[3] = {};
  Sums sums[2] = {};
  Accumulators t;  // the first step loads them
  std::memset(tile, 0, static_cast<std::size_t>(pass.blocks() * kTileM * kStripRows) * sizeof(float));
  const std::int64_t groups = pass.w.groups(), step = kChunk / pass.w.group;
  const Step nothing{&terms[2].heads[0], 0, terms[2].s_and_sum[0], tile, true, false};
  Pipeline line{nothing, nothing, &sums[0], &sums[1]};
  for (std::int64_t g = 0, chunk = 0; g < groups; g += step, ++chunk) {
    const Range here{g, g + step < groups ? g + step : groups};
    Terms& own = terms[chunk % 3];
    unpack_chunk<F>(pass.w, pass.w.data + pass.w.offset(pass.strip, g, 0), here.end - g, pass.panels, bytes, own);
    for (std::int64_t i = g; pass.narrow() && i < here.end; ++i) {
      std::memcpy(own.s_and_sum[i - g], pass.x.scales + (i * pass.x.rows + pass.begin) * 2,
                  static_cast<std::size_t>(pass.count) * 2 * sizeof(float));
    }
    asm volatile("" ::: "memory");  // GCC does not know that a tile load reads memory
    multiply_chunk<F, Halves>(pass, here, bytes, own, tile, line, t);
  }
  drain<F::kKind>(line, t);
  store_output(pass, tile);
}

template <class F, int Halves>
OUTRIDER_AMX void product_of_planes(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y,
                                    std::int64_t ldy) {
  // Passes of equal size: a short last one would pay the unpacking for few rows.
  const std::int64_t all = rows.end - rows.begin, passes = (all + kPassRows - 1) / kPassRows;
  for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
    for (std::int64_t i = 0; i < passes; ++i) {
      const std::int64_t begin = rows.begin + all * i / passes, end = rows.begin + all * (i + 1) / passes;
      const Pass pass{w, x, strip, w.panels_of(strip), begin, end - begin, y + begin * ldy + strip * kStripRows, ldy};
      configure_tiles(pass.tile_rows(), w.group);
      multiply_pass<F, Halves>(pass);
    }
  }
  _tile_release();  // no later context switch saves the tiles
}

void code_rows(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
               std::uint32_t* faults) {
  (reads_planes(out.rows, group) ? code_planes : avx512::code_rows)(x, ldx, k, group, rows, out, faults);
}

void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy) {
  if (!reads_planes(x.rows, w.group)) {
    vnni::product(w, strips, x, rows, y, ldy);
    return;
  }
  with_format(w, [&]<class F>() {
    if (w.group > kTileBytes) {
      if constexpr (F::kKind == PackedKind::affine) product_of_planes<F, 2>(w, strips, x, rows, y, ldy);
    } else {
      product_of_planes<F, 1>(w, strips, x, rows, y, ldy);
    }
  });
}

}  // namespace
}  // namespace linear::amx

void fill_linear_kernels_amx(KernelTable& table) {
  fill_linear_kernels_avx512(table);
  table.code_rows = linear::amx::code_rows;
  table.product = linear::amx::product;
}

}  // namespace outrider

#endif  // __x86_64__
