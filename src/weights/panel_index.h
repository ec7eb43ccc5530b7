// The bytes of a panel file's index, shared by its reader and its writer. Inside this room only.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "weights/panel_file.h"

namespace outrider {

inline constexpr char kPanelMagic[8] = {'O', 'U', 'T', 'R', 'P', 'A', 'N', 'L'};
inline constexpr std::uint32_t kPanelByteOrder = 0x01020304;
inline constexpr std::size_t kPanelHeaderBytes = 112;
inline constexpr std::size_t kPanelSealedBytes = 80;  // of the header, covered by its SHA-256
// Entries start where a page of any common system starts, but for 64 KiB pages, which the mapping does not need.
inline constexpr std::uint64_t kPanelAlignment = 4096;
inline constexpr std::size_t kPanelEntryBytes = 32;  // before the name

constexpr std::uint64_t panel_aligned(std::uint64_t at) {
  return (at + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
}
// Index of the first piece that holds data, and how many there are.
constexpr std::uint64_t first_piece(std::uint64_t data_begin) { return data_begin / kPanelPieceBytes; }
constexpr std::uint64_t piece_count(std::uint64_t data_begin, std::uint64_t file_bytes) {
  if (data_begin == file_bytes) return 0;
  return (file_bytes + kPanelPieceBytes - 1) / kPanelPieceBytes - first_piece(data_begin);
}
// Checksums in the table: enough wherever the data begin, because that depends on the size of the table.
constexpr std::uint64_t piece_slots(std::uint64_t data_bytes) {
  return (data_bytes + kPanelPieceBytes - 1) / kPanelPieceBytes + 1;
}

// SHA-256 of the sealed header bytes and the table.
Fingerprint panel_seal(std::span<const std::byte> header, std::span<const std::byte> table);

}  // namespace outrider
