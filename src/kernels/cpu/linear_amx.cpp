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

// A strip's group: the bytes of its weights [panel][G/4][16][4], a panel's being one or two tiles, and its heads.
struct Group {
  alignas(64) std::byte bytes[kStripRows * kMaxGroup];
  Heads heads;
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
OUTRIDER_AVX512 void unpack_group(const PackedMatrix& w, const std::byte* block, std::int64_t panels, Group& out) {
  const std::size_t block_bytes = w.block_bytes(), head_bytes = w.head_bytes();
  std::byte* bytes = out.bytes;
  for (std::int64_t p = 0; p < panels; ++p, block += block_bytes) {
    prefetch_block(block, block_bytes);
    unpack_head<F::kKind>(block, w.scale_type, p, out.heads);
    Words words = words_of<F>(block, head_bytes, w.group);
    for (int k = 0; k < w.group; k += F::kUnit, bytes += F::kUnit * kPanelRows, next_unit<F>(words)) {
      unpack_unit<F>(words, bytes, std::make_integer_sequence<int, F::kUnit / 8>{});
    }
  }
}

// --- Tiles ---

// Tiles 0..3: sums of q*high and q*low of two panels; 4, 5: the planes of sixteen rows; 6, 7: the panels.
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

template <PackedKind Kind>
OUTRIDER_AMX_INLINE void multiply_first() {
  if constexpr (Kind == PackedKind::e2m1) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbusd(1, 5, 6);
  } else {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbuud(1, 5, 6);
  }
}
template <PackedKind Kind>
OUTRIDER_AMX_INLINE void multiply_second() {
  if constexpr (Kind == PackedKind::e2m1) {
    _tile_dpbssd(2, 4, 7);
    _tile_dpbusd(3, 5, 7);
  } else {
    _tile_dpbsud(2, 4, 7);
    _tile_dpbuud(3, 5, 7);
  }
}

// Panels (1 or 2) of one group against the planes of up to sixteen rows, left in tiles 0..3.
template <PackedKind Kind, int Panels>
OUTRIDER_AMX_INLINE void multiply_tiles(const std::byte* weights, const std::byte* planes, std::int64_t group) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (Panels == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t k = 0; k < group; k += kTileBytes) {
    _tile_loadd(4, planes + k, 2 * group);
    _tile_loadd(6, weights + k * kPanelRows, kTileBytes);
    _tile_loadd(5, planes + group + k, 2 * group);
    multiply_first<Kind>();
    if constexpr (Panels == 2) {
      _tile_loadd(7, weights + (group + k) * kPanelRows, kTileBytes);
      multiply_second<Kind>();
    }
  }
}

// The sums of one step as they leave the tiles: [panel]{high, low}[row][16].
struct Sums {
  alignas(64) std::int32_t values[2][2][kTileM * kPanelRows];
};

template <int Panels>
OUTRIDER_AMX_INLINE void store_tiles(Sums& sums) {
  _tile_stored(0, sums.values[0][0], kTileBytes);
  _tile_stored(1, sums.values[0][1], kTileBytes);
  if constexpr (Panels == 2) {
    _tile_stored(2, sums.values[1][0], kTileBytes);
    _tile_stored(3, sums.values[1][1], kTileBytes);
  }
}

// The f32 part of one step: rows [first, rows) of the sums, `panels` panels from `panel`.
struct Step {
  const Heads* heads = nullptr;
  std::int64_t panel = 0, panels = 2;
  std::int64_t first = 0, rows = 0;
  const float* s_and_sum = nullptr;  // of row 0 of the tile
  float* t = nullptr;                // of row 0 of the tile and `panel`; rows are kStripRows apart
};

template <PackedKind Kind>
OUTRIDER_AVX512_INLINE void finish_row(const Sums& sums, std::int64_t row, int panel, const Head<Kind>& head,
                                       const float* s_and_sum, float* t) {
  const __m512i high = _mm512_load_si512(sums.values[panel][0] + row * kPanelRows);
  const __m512i low = _mm512_load_si512(sums.values[panel][1] + row * kPanelRows);
  const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
  _mm512_store_ps(t, add_group(sum, head, s_and_sum, _mm512_load_ps(t)));
}

template <PackedKind Kind, int Panels>
OUTRIDER_AVX512_INLINE void finish_panels(const Step& step, const Sums& sums) {
  const Head<Kind> first = head_of<Kind>(*step.heads, step.panel);
  const Head<Kind> second = head_of<Kind>(*step.heads, step.panel + Panels - 1);
  const float* s_and_sum = step.s_and_sum + 2 * step.first;
  float* t = step.t + step.first * kStripRows;
#pragma clang loop unroll_count(4)
  for (std::int64_t r = step.first; r < step.rows; ++r, s_and_sum += 2, t += kStripRows) {
    finish_row<Kind>(sums, r, 0, first, s_and_sum, t);
    if constexpr (Panels == 2) finish_row<Kind>(sums, r, 1, second, s_and_sum, t + kPanelRows);
  }
}

template <PackedKind Kind>
OUTRIDER_AVX512_INLINE void finish(const Step& step, const Sums& sums) {
  if (step.panels == 2) {
    finish_panels<Kind, 2>(step, sums);
  } else {
    finish_panels<Kind, 1>(step, sums);
  }
}

// --- Strips ---

// Up to kPassRows rows against one strip. The f32 part of a step runs while the tiles of the next one multiply, across
// groups too, hence two unpacked groups.
template <class F>
OUTRIDER_AMX void strip_rows(const PackedMatrix& w, std::int64_t strip, const CodedRows& x, Range rows, float* y,
                             std::int64_t ldy) {
  alignas(64) float tile[kPassRows * kStripRows];
  Group groups[2];
  Sums sums;
  Step pending;
  const std::int64_t panels = w.panels_of(strip), count = rows.end - rows.begin, group = w.group;
  const std::int64_t tile_rows = count < kTileM ? count : kTileM;
  std::memset(tile, 0, static_cast<std::size_t>(count * kStripRows) * sizeof(float));
  for (std::int64_t g = 0; g < w.groups(); ++g) {
    Group& unpacked = groups[g % 2];
    unpack_group<F>(w, w.data + w.offset(strip, g, 0), panels, unpacked);
    asm volatile("" ::: "memory");  // GCC does not know that a tile load reads memory
    for (std::int64_t r = 0; r < count; r += kTileM) {
      // The last tile of rows overlaps the one before; the f32 part of a row is done once.
      const std::int64_t first = r + tile_rows <= count ? r : count - tile_rows;
      const std::int64_t at = g * x.rows + rows.begin + first;
      const auto* planes = reinterpret_cast<const std::byte*>(x.codes + at * group);
      for (std::int64_t p = 0; p < panels; p += 2) {
        const bool pair = p + 1 < panels;
        const std::byte* weights = unpacked.bytes + p * group * kPanelRows;
        if (pair) {
          multiply_tiles<F::kKind, 2>(weights, planes, group);
        } else {
          multiply_tiles<F::kKind, 1>(weights, planes, group);
        }
        finish<F::kKind>(pending, sums);
        if (pair) {
          store_tiles<2>(sums);
        } else {
          store_tiles<1>(sums);
        }
        pending = {&unpacked.heads,
                   p,
                   pair ? 2 : 1,
                   r - first,
                   tile_rows,
                   x.scales + at * 2,
                   tile + first * kStripRows + p * kPanelRows};
      }
    }
  }
  finish<F::kKind>(pending, sums);
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
