// The packed layout of a weight matrix (numerics.md section 3): one layout for every ISA, also that of the mapped file.
//
// Affine: [ceil(N/96) strips][K/G groups][6 panels, fewer in the last strip]
//           { scale[16], bias[16] in `scale_type`; word[G*b/32][16] u32 little-endian }
//   A panel is 16 output rows. b in {4, 8} today; word i of a row holds codes (32/b)*i + 2p+e at bits b*p + 16e,
//   e in {0,1}, p < 16/b. Rows N..16*ceil(N/16) hold code 0, scale 0, bias 0 and are never stored to y.
// Dense:  [ceil(N/96)][K][6, fewer in the last strip][16] in `scale_type` (the value type).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace outrider {

enum class FloatType : std::uint8_t { f32, f16, bf16 };
constexpr std::size_t size_of(FloatType type) { return type == FloatType::f32 ? 4 : 2; }

enum class PackedKind : std::uint8_t { affine, dense };

// A borrowed view of one packed [n, k] matrix, y = x * W^T. `data` is 64-byte aligned (4096 in a file).
struct PackedMatrix {
  static constexpr std::int64_t kPanelRows = 16;
  static constexpr std::int64_t kStripPanels = 6;
  static constexpr std::int64_t kStripRows = kPanelRows * kStripPanels;

  PackedKind kind = PackedKind::dense;
  FloatType scale_type = FloatType::f32;  // affine: of scale and bias; dense: of the values
  int bits = 0;                           // affine: 4 or 8
  int group = 0;                          // affine: 32, 64 or 128
  std::int64_t n = 0;                     // output rows
  std::int64_t k = 0;                     // input width, a multiple of `group` when affine
  const std::byte* data = nullptr;

  std::int64_t strips() const { return (n + kStripRows - 1) / kStripRows; }
  std::int64_t panels() const { return (n + kPanelRows - 1) / kPanelRows; }
  std::int64_t panels_of(std::int64_t strip) const { return std::min(kStripPanels, panels() - strip * kStripPanels); }
  std::int64_t groups() const { return kind == PackedKind::affine ? k / group : 0; }
  // Affine: bytes of one {scale, bias, words} block of a panel. Dense: bytes of the 16 values of one k of a panel.
  std::size_t block_bytes() const {
    return kind == PackedKind::affine
               ? 2 * kPanelRows * size_of(scale_type) + static_cast<std::size_t>(group) * bits / 32 * kPanelRows * 4
               : kPanelRows * size_of(scale_type);
  }
  // Blocks of one panel along K.
  std::int64_t depth() const { return kind == PackedKind::affine ? groups() : k; }
  std::size_t bytes() const { return static_cast<std::size_t>(panels() * depth()) * block_bytes(); }
  // Start of the block of (strip, depth index, panel within the strip).
  std::size_t offset(std::int64_t strip, std::int64_t d, std::int64_t panel) const {
    return static_cast<std::size_t>(strip * kStripPanels * depth() + d * panels_of(strip) + panel) * block_bytes();
  }
};

}  // namespace outrider
