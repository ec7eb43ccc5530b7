// The inverse of pack.cpp, written from the layout's text and not from the packer, so that a test compares two
// readings.
#include <cstring>

#include "weights/float_bits.h"
#include "weights/pack.h"

namespace outrider {
namespace {

// Code j of a row's lane in a plane of `bits` bits: word j/(32/b), bits b*p + 16e with j%(32/b) = 2p+e.
std::uint32_t plane_code(const std::byte* words, int bits, std::int64_t lane, std::int64_t j) {
  const std::int64_t per_word = 32 / bits;
  const std::int64_t i = j / per_word, p = j % per_word / 2, e = j % 2;
  std::uint32_t word;
  std::memcpy(&word, words + (i * PackedMatrix::kPanelRows + lane) * 4, 4);
  return word >> (bits * p + 16 * e) & ((1u << bits) - 1);
}

void unpack_coded_row(const PackedMatrix& m, std::int64_t row, Unpacked& out) {
  const std::int64_t strip = row / PackedMatrix::kStripRows;
  const std::int64_t panel = row % PackedMatrix::kStripRows / PackedMatrix::kPanelRows;
  const std::int64_t lane = row % PackedMatrix::kPanelRows;
  const auto width = static_cast<std::int64_t>(size_of(m.scale_type));
  const bool biased = m.kind == PackedKind::affine;
  // 3, 5 and 6 bits lie in two planes.
  const int low_bits = m.bits == 3 ? 2 : m.bits == 5 || m.bits == 6 ? 4 : m.bits, high_bits = m.bits - low_bits;
  for (std::int64_t g = 0; g < m.groups(); ++g) {
    const std::byte* block = m.data + m.offset(strip, g, panel);
    const auto at = static_cast<std::size_t>(row * m.groups() + g);
    out.scales[at] = load_float(block + lane * width, m.scale_type);
    if (biased) out.biases[at] = load_float(block + (PackedMatrix::kPanelRows + lane) * width, m.scale_type);
    const std::byte* low = block + (biased ? 2 : 1) * PackedMatrix::kPanelRows * width;
    const std::byte* high = low + m.group / (32 / low_bits) * PackedMatrix::kPanelRows * 4;
    for (std::int64_t j = 0; j < m.group; ++j) {
      std::uint32_t code = plane_code(low, low_bits, lane, j);
      if (high_bits > 0) code |= plane_code(high, high_bits, lane, j) << low_bits;
      out.codes[static_cast<std::size_t>(row * m.k + g * m.group + j)] = static_cast<std::uint8_t>(code);
    }
  }
}

}  // namespace

Unpacked unpack(const PackedMatrix& m) {
  Unpacked out;
  if (m.coded()) {
    out.codes.resize(static_cast<std::size_t>(m.n * m.k));
    out.scales.resize(static_cast<std::size_t>(m.n * m.groups()));
    if (m.kind == PackedKind::affine) out.biases.resize(out.scales.size());
    for (std::int64_t row = 0; row < m.n; ++row) unpack_coded_row(m, row, out);
    return out;
  }
  out.values.resize(static_cast<std::size_t>(m.n * m.k));
  for (std::int64_t row = 0; row < m.n; ++row) {
    const std::int64_t strip = row / PackedMatrix::kStripRows;
    const std::int64_t panel = row % PackedMatrix::kStripRows / PackedMatrix::kPanelRows;
    for (std::int64_t j = 0; j < m.k; ++j) {
      const std::size_t lane = static_cast<std::size_t>(row % PackedMatrix::kPanelRows) * size_of(m.scale_type);
      out.values[static_cast<std::size_t>(row * m.k + j)] =
          load_float(m.data + m.offset(strip, j, panel) + lane, m.scale_type);
    }
  }
  return out;
}

}  // namespace outrider
