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
constexpr std::int64_t kTileM = 16;      // rows of a tile
constexpr std::int64_t kTileBytes = 64;  // of a row of a tile
// Rows of one pass over a strip: 64 x 96 accumulators are 24 KiB and stay in a 48 KiB L1 beside the unpacked group;
// more rows move them to L2 and back in each group.
constexpr std::int64_t kPassRows = 64;

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

// The bytes of a strip's group as tiles: [panel][G/4][16][4], a panel being one or two of them.
struct Bytes {
  alignas(64) std::byte values[kStripRows * kMaxGroup];
};

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

template <class F>
OUTRIDER_AVX512 void unpack_group(const PackedMatrix& w, const std::byte* block, std::int64_t panels, Bytes& out,
                                  Heads& heads) {
  const std::size_t block_bytes = w.block_bytes(), head_bytes = w.head_bytes();
  std::byte* bytes = out.values;
  for (std::int64_t p = 0; p < panels; ++p, block += block_bytes) {
    prefetch_block(block, block_bytes);
    unpack_head<F::kKind>(block, w.scale_type, p, heads);
    Words words = words_of<F>(block, head_bytes, w.group);
    for (int k = 0; k < w.group; k += F::kUnit, bytes += F::kUnit * kPanelRows, next_unit<F>(words)) {
      unpack_unit<F>(words, bytes, std::make_integer_sequence<int, F::kUnit / 8>{});
    }
  }
}

// --- Tiles ---

// Tiles 0, 1 and 2, 3: sums of q*high and q*low of one panel and of the next; 4, 5: the planes of sixteen rows; 6, 7:
// the two panels.
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
  for (int i = 0; i < 8; ++i) {
    shapes.rows[i] = static_cast<std::uint8_t>(i < 6 ? rows : depth / 4);
    shapes.row_bytes[i] = static_cast<std::uint16_t>(i == 4 || i == 5 ? depth : kTileBytes);
  }
  _tile_loadconfig(&shapes);
}

// The bytes that tiles 4 and 5 hold: those at `planes` for this K, one after the other 2*group apart.
OUTRIDER_AMX_INLINE void load_planes(const std::byte* planes, std::int64_t group) {
  _tile_loadd(4, planes, 2 * group);
  _tile_loadd(5, planes + group, 2 * group);
}

// Adds one K of the first (0) or second (1) panel of a pair to its tiles.
template <PackedKind Kind, int Panel>
OUTRIDER_AMX_INLINE void accumulate(const std::byte* weights) {
  if constexpr (Panel == 0) {
    _tile_loadd(6, weights, kTileBytes);
    if constexpr (Kind == PackedKind::e2m1) {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbusd(1, 5, 6);
    } else {
      _tile_dpbsud(0, 4, 6);
      _tile_dpbuud(1, 5, 6);
    }
  } else {
    _tile_loadd(7, weights, kTileBytes);
    if constexpr (Kind == PackedKind::e2m1) {
      _tile_dpbssd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    } else {
      _tile_dpbsud(2, 4, 7);
      _tile_dpbuud(3, 5, 7);
    }
  }
}

template <int Panel>
OUTRIDER_AMX_INLINE void zero_tiles() {
  if constexpr (Panel == 0) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// One panel of one group against the planes of up to sixteen rows; `loaded` is what tiles 4 and 5 hold.
template <PackedKind Kind, int Panel>
OUTRIDER_AMX_INLINE void multiply(const std::byte* weights, const std::byte* planes, std::int64_t group,
                                  const std::byte*& loaded) {
  zero_tiles<Panel>();
  for (std::int64_t k = 0; k < group; k += kTileBytes) {
    if (loaded != planes + k) load_planes(planes + k, group);
    loaded = planes + k;
    accumulate<Kind, Panel>(weights + k * kPanelRows);
  }
}

// The sums of one panel as they leave the tiles: [row][16].
struct Sums {
  alignas(64) std::int32_t high[kTileM * kPanelRows];
  alignas(64) std::int32_t low[kTileM * kPanelRows];
};

template <int Panel>
OUTRIDER_AMX_INLINE void store_tiles(Sums& sums) {
  if constexpr (Panel == 0) {
    _tile_stored(0, sums.high, kTileBytes);
    _tile_stored(1, sums.low, kTileBytes);
  } else {
    _tile_stored(2, sums.high, kTileBytes);
    _tile_stored(3, sums.low, kTileBytes);
  }
}

// What the f32 part of a pair of panels needs: rows [first, rows) of a tile.
struct Step {
  const Heads* heads;
  std::int64_t panel;  // the first of the pair
  std::int64_t first, rows;
  const float* s_and_sum;  // of row 0 of the tile
  float* t;                // of row 0 of the tile and `panel`; rows are kStripRows apart
};

template <PackedKind Kind, int Panel>
OUTRIDER_AVX512_INLINE void finish(const Step& step, const Sums& sums) {
  const Head<Kind> head = head_of<Kind>(*step.heads, step.panel + Panel);
  const float* s_and_sum = step.s_and_sum + 2 * step.first;
  float* t = step.t + step.first * kStripRows + Panel * kPanelRows;
#pragma clang loop unroll_count(4)
  for (std::int64_t r = step.first; r < step.rows; ++r, s_and_sum += 2, t += kStripRows) {
    const __m512i high = _mm512_load_si512(sums.high + r * kPanelRows);
    const __m512i low = _mm512_load_si512(sums.low + r * kPanelRows);
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
    _mm512_store_ps(t, add_group(sum, head, s_and_sum, _mm512_load_ps(t)));
  }
}

// --- Strips ---

// An odd panel multiplies with zeros beside it.
OUTRIDER_AVX512 void clear_panel(std::int64_t panel, std::int64_t group, Bytes& bytes, Heads& heads) {
  std::memset(bytes.values + panel * group * kPanelRows, 0, static_cast<std::size_t>(group * kPanelRows));
  std::memset(heads.scales + panel * kPanelRows, 0, kPanelRows * sizeof(float));
  std::memset(heads.biases + panel * kPanelRows, 0, kPanelRows * sizeof(float));
}

// Up to kPassRows rows against one strip. While tiles of one panel multiply, those of the panel before go to memory and
// the sums stored before that go through the f32 part: neither the latency of a product nor that of a store is waited
// for. The f32 part thus lags by a pair of panels, across groups too, hence the heads of two groups.
template <class F>
OUTRIDER_AMX void strip_rows(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, Range rows, float* y,
                             std::int64_t ldy) {
  alignas(64) float tile[kPassRows * kStripRows];
  Bytes bytes;
  Heads heads[2];
  Sums sums[2];
  const std::int64_t panels = w.panels_of(strip), count = rows.end - rows.begin, group = w.group;
  const std::int64_t tile_rows = count < kTileM ? count : kTileM;
  std::memset(tile, 0, static_cast<std::size_t>(count * kStripRows) * sizeof(float));
  if (panels % 2 != 0) {
    for (Heads& both : heads) clear_panel(panels, group, bytes, both);
  }
  Step pending{&heads[0], 0, 0, 0, x.scales, tile};  // no rows yet
  const std::byte* loaded = nullptr;
  for (std::int64_t g = 0; g < w.groups(); ++g) {
    unpack_group<F>(w, w.data + w.offset(strip, g, 0), panels, bytes, heads[g % 2]);
    asm volatile("" ::: "memory");  // GCC does not know that a tile load reads memory
    for (std::int64_t r = 0; r < count; r += kTileM) {
      // The last tile of rows overlaps the one before; the f32 part of a row is done once.
      const std::int64_t first = r + tile_rows <= count ? r : count - tile_rows;
      const std::int64_t at = g * x.rows + rows.begin + first;
      const auto* planes = reinterpret_cast<const std::byte*>(x.codes + at * group);
      for (std::int64_t p = 0; p < panels; p += 2) {
        const std::byte* weights = bytes.values + p * group * kPanelRows;
        multiply<F::kKind, 0>(weights, planes, group, loaded);
        store_tiles<1>(sums[1]);
        finish<F::kKind, 0>(pending, sums[0]);
        multiply<F::kKind, 1>(weights + group * kPanelRows, planes, group, loaded);
        store_tiles<0>(sums[0]);
        finish<F::kKind, 1>(pending, sums[1]);
        pending = {
            &heads[g % 2], p, r - first, tile_rows, x.scales + at * 2, tile + first * kStripRows + p * kPanelRows};
      }
    }
  }
  store_tiles<1>(sums[1]);
  finish<F::kKind, 0>(pending, sums[0]);
  finish<F::kKind, 1>(pending, sums[1]);
  store_strip(w, strip, tile, kStripRows, count, y + rows.begin * ldy, ldy);
}

template <class F>
OUTRIDER_AMX void product_of_planes(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y,
                                    std::int64_t ldy) {
  for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
    for (std::int64_t row = rows.begin; row < rows.end; row += kPassRows) {
      const Range pass{row, row + kPassRows < rows.end ? row + kPassRows : rows.end};
      const std::int64_t count = pass.end - pass.begin;
      configure_tiles(count < kTileM ? count : kTileM, w.group);
      strip_rows<F>(w, strip, x, pass, y, ldy);
    }
  }
  _tile_release();  // no later context switch saves the tiles
}

void code_rows(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
               std::uint32_t* faults) {
  (out.rows > kIntegerRows ? code_planes : avx512::code_rows)(x, ldx, k, group, rows, out, faults);
}

void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy) {
  if (x.rows <= kIntegerRows) {
    vnni::product(w, strips, x, rows, y, ldy);
    return;
  }
  with_format(w, [&]<class F>() { product_of_planes<F>(w, strips, x, rows, y, ldy); });
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
