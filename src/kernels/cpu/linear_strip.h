// What the Linear kernels of every ISA share: finding blocks, leaving a strip's results in y. Internal to cpu/linear_*.
#pragma once

#include <cstring>

#include "kernels/kernel_table.h"

// DO(i) for the halves or panels of a strip, the rows of a call, the code pairs of a word. The accumulators of a hot
// loop are named variables (a0 .. a11), because GCC keeps arrays of them in memory. One macro cannot repeat inside
// itself, so OUTRIDER_FOUR_PAIRS is for the outer of two.
#define OUTRIDER_TWELVE(DO) OUTRIDER_EIGHT(DO) DO(8) DO(9) DO(10) DO(11)
#define OUTRIDER_EIGHT(DO) OUTRIDER_SIX(DO) DO(6) DO(7)
#define OUTRIDER_SIX(DO) OUTRIDER_FOUR(DO) DO(4) DO(5)
#define OUTRIDER_FOUR(DO) DO(0) DO(1) DO(2) DO(3)
#define OUTRIDER_FOUR_PAIRS(DO) DO(0) DO(1) DO(2) DO(3)
#define OUTRIDER_SIXTEEN_PAIRS(DO) \
  OUTRIDER_FOUR_PAIRS(DO) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)

namespace outrider::linear {

// Rows that one pass of the many-row form handles: 128 x 96 accumulators are 48 KiB, about what an L2 keeps beside a
// strip's unpacked group (24 KiB at most); unpacking costs 1/128 of the products then.
inline constexpr std::int64_t kTileRows = 128;
// Up to here the weights are streamed once and unpacked in registers; above, a strip's group is unpacked to L1.
inline constexpr std::int64_t kFewRows = 8;
inline constexpr int kMaxGroup = 128;
// K taken at once by the dense many-row form: 64 x 96 f32 are 24 KiB of L1. (32 was a third slower at 512 rows, where x
// comes from L3 in slices.)
inline constexpr std::int64_t kDenseDepth = 64;
inline constexpr std::size_t kLineBytes = 64;
// A hardware prefetcher stops at the page; this keeps a whole page in flight before the words are needed.
inline constexpr std::size_t kAheadBytes = 4096;

// Outputs of a strip that exist (the last strip may end inside a panel).
inline std::int64_t strip_columns(const PackedMatrix& w, std::int64_t strip) {
  const std::int64_t left = w.n - strip * PackedMatrix::kStripRows;
  return left < PackedMatrix::kStripRows ? left : PackedMatrix::kStripRows;
}

// Copies `rows` rows of a strip's accumulators [rows][stride] to y, leaving out the outputs beyond N.
inline void store_strip(const PackedMatrix& w, std::int64_t strip, const float* tile, std::int64_t stride,
                        std::int64_t rows, float* y, std::int64_t ldy) {
  const std::size_t bytes = static_cast<std::size_t>(strip_columns(w, strip)) * sizeof(float);
  float* out = y + strip * PackedMatrix::kStripRows;
  for (std::int64_t r = 0; r < rows; ++r) std::memcpy(out + r * ldy, tile + r * stride, bytes);
}

// Coding of a group whose largest magnitude has these bits (numerics.md section 2): the vector forms code what can be
// coded, all store the same for what cannot. code_as_zeros() returns the fault bits.
inline constexpr int kInfBits = 0x7f800000;
inline constexpr int kTinyBits = (127 - 100) << 23;  // 2^-100
inline constexpr float kLargestCode = 32767.0F;
inline bool can_be_coded(int bits) { return bits < kInfBits && bits >= kTinyBits; }
inline std::uint32_t code_as_zeros(int bits, int group, std::int16_t* codes, float* s_and_sum) {
  std::memset(codes, 0, static_cast<std::size_t>(group) * sizeof *codes);
  const std::uint32_t s = bits >= kInfBits ? 0x7fc00000U : 0U;
  std::memcpy(s_and_sum, &s, sizeof s);
  s_and_sum[1] = 0.0F;
  return bits >= kInfBits ? kFaultNonFinite : 0;
}

// Asks for the line `ahead` bytes after p. An address beyond the matrix is harmless: a prefetch never faults, and the
// sum is formed on integers so that no pointer leaves its array.
inline void prefetch_ahead(const void* p, std::size_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + ahead));
}

// The dense many-row form reads kDenseDepth values of one row of x, then of the next, a page away: no hardware
// prefetcher follows that. Asks for the slice two strides on.
inline void prefetch_slice(const float* x, std::int64_t stride) {
  const std::size_t ahead = static_cast<std::size_t>(2 * stride) * sizeof(float);
  for (std::size_t line = 0; line < kDenseDepth * sizeof(float); line += kLineBytes) prefetch_ahead(x, ahead + line);
}

}  // namespace outrider::linear
