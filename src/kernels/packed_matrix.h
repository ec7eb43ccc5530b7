// The packed layout of a weight matrix (numerics.md section 3): one layout for every ISA, also that of the mapped file.
//
// Affine: [ceil(N/96) strips][K/G groups][6 panels, fewer in the last strip]
//           { scale[16], bias[16] in `scale_type`; word[G*b/32][16] u32 little-endian }
//   A panel is 16 output rows; a line is 16 words, one of each row. b in {2, 4, 8}: word i of a row holds codes
//   (32/b)*i + 2p+e at bits b*p + 16e, e in {0,1}, p < 16/b. b in {3, 5, 6} are two planes of such words, first the low
//   bits (2, 4, 4), then the high ones (1, 1, 2): code = low + (high << low bits). The bytes are those of b bits.
// E2m1 (mxfp4, nvfp4): the same with { scale[16] f32 } and no bias, b = 4, G = 32 or 16. A code is the sign and the
//   magnitude of e2m1; the integer of the product is twice its value (kE2m1Doubled), the scale half of the
//   checkpoint's.
// Rows N..16*ceil(N/16) hold code 0, scale 0, bias 0 and are never stored to y.
// Dense:  [ceil(N/96)][K][6, fewer in the last strip][16] in `scale_type` (the value type).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace outrider {

enum class FloatType : std::uint8_t { f32, f16, bf16 };
constexpr std::size_t size_of(FloatType type) { return type == FloatType::f32 ? 4 : 2; }

enum class PackedKind : std::uint8_t { affine, e2m1, dense };

// Twice the value of each e2m1 code: bit 3 is the sign.
inline constexpr std::int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Bits of the planes that codes of `bits` bits are stored in; high is 0 when one plane holds them.
struct Planes {
  int low = 0;
  int high = 0;
};
constexpr Planes planes_of(int bits) {
  return bits == 3 ? Planes{2, 1} : bits == 5 ? Planes{4, 1} : bits == 6 ? Planes{4, 2} : Planes{bits, 0};
}

// A borrowed view of one packed [n, k] matrix, y = x * W^T. `data` is 64-byte aligned (4096 in a file).
struct PackedMatrix {
  static constexpr std::int64_t kPanelRows = 16;
  static constexpr std::int64_t kStripPanels = 6;
  static constexpr std::int64_t kStripRows = kPanelRows * kStripPanels;

  PackedKind kind = PackedKind::dense;
  FloatType scale_type = FloatType::f32;  // affine: of scale and bias; e2m1: f32; dense: of the values
  int bits = 0;                           // affine: 2, 3, 4, 5, 6 or 8; e2m1: 4
  int group = 0;                          // affine: 32, 64 or 128; e2m1: 32 or 16
  std::int64_t n = 0;                     // output rows
  std::int64_t k = 0;                     // input width, a multiple of `group` when affine
  const std::byte* data = nullptr;

  std::int64_t strips() const { return (n + kStripRows - 1) / kStripRows; }
  std::int64_t panels() const { return (n + kPanelRows - 1) / kPanelRows; }
  std::int64_t panels_of(std::int64_t strip) const { return std::min(kStripPanels, panels() - strip * kStripPanels); }
  // Whether inputs are coded in groups for this matrix (affine, e2m1), or read as f32 (dense).
  bool coded() const { return kind != PackedKind::dense; }
  std::int64_t groups() const { return coded() ? k / group : 0; }
  // Coded: bytes of the scales, and the biases, before a block's words.
  std::size_t head_bytes() const {
    return (kind == PackedKind::affine ? 2U : 1U) * static_cast<std::size_t>(kPanelRows) * size_of(scale_type);
  }
  // Coded: bytes of one {scale, bias, words} block of a panel. Dense: bytes of the 16 values of one k of a panel.
  std::size_t block_bytes() const {
    return coded() ? head_bytes() + static_cast<std::size_t>(group) * bits / 32 * kPanelRows * 4
                   : kPanelRows * size_of(scale_type);
  }
  // Blocks of one panel along K.
  std::int64_t depth() const { return coded() ? groups() : k; }
  std::size_t bytes() const { return static_cast<std::size_t>(panels() * depth()) * block_bytes(); }
  // Start of the block of (strip, depth index, panel within the strip).
  std::size_t offset(std::int64_t strip, std::int64_t d, std::int64_t panel) const {
    return static_cast<std::size_t>(strip * kStripPanels * depth() + d * panels_of(strip) + panel) * block_bytes();
  }
};

}  // namespace outrider
