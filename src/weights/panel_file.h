// The panel file: the packed weights of a model as one file, mapped read-only, so that a start packs nothing and
// processes that run the same model share its pages.
//
// Layout, all integers of the writer's byte order (a mark tells a foreign one):
//   0    char[8] "OUTRPANL", u32 layout version, u32 0x01020304, u64 file bytes, u64 table bytes, u64 entries,
//   40   u64 data begin, u8[32] fingerprint of the source, u8[32] SHA-256 of bytes [0, 80) and of the table
//   112  table: entries { u16 name bytes, u8 kind of entry, u8 kind, u8 type, u8 bits, u16 group, i64 n, i64 k, u64
//        offset, name }, then u64 checksums: one for every piece of kPanelPieceBytes of the file that holds data, and
//        zeros up to piece_slots()
//   data begin (4096-aligned): the entries one after another, each 4096-aligned, zeros between them; a matrix in the
//        layout of kernels/packed_matrix.h, a vector as f32 [n]
//
// What is noticed: a torn, cut, foreign or hostile index by its SHA-256, its size and the rules of parse_panels(); one
// flipped bit or one lost page of the data by the checksum of its piece, at every start. Checksums guard against
// accidents: whoever may write the file may also write the model.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "kernels/packed_matrix.h"
#include "weights/sha256.h"

namespace outrider {

// Raise it whenever packing gives other bytes for the same source, or the layout above changes: older files are then
// packed anew.
inline constexpr std::uint32_t kPanelLayoutVersion = 1;
// One write, one checksum, one task of a check: the large page of x86 and ARM, which the system can then map whole.
inline constexpr std::size_t kPanelPieceBytes = std::size_t{2} << 20;

using Fingerprint = Sha256Digest;

enum class PanelEntryKind : std::uint8_t { matrix, vector };

struct PanelEntry {
  std::string name;  // module path of a matrix, tensor name of a vector
  PanelEntryKind kind = PanelEntryKind::matrix;
  PackedMatrix form;         // data null; of a vector: n values, k = 1, dense f32
  std::uint64_t offset = 0;  // in the file

  std::uint64_t bytes() const;
};

struct PanelIndex {
  Fingerprint fingerprint{};
  std::map<std::string, PanelEntry, std::less<>> entries;
  std::uint64_t data_begin = 0, file_bytes = 0;
  std::vector<std::uint64_t> checksums;  // of the pieces from the one that holds data_begin on
};

// Checks the index of a whole file image. Error (data) naming `origin`, fact and limit; no data byte is touched.
PanelIndex parse_panels(std::span<const std::byte> file, std::string_view origin);

// 64 bits over `bytes` (whole 64-byte lines), in the order of the lines.
std::uint64_t panel_checksum(std::span<const std::byte> bytes);

// An open panel file. Entries are read through mapping(), which outlives this object where a weight holds it.
class PanelFile {
 public:
  // Error (data) as parse_panels, or when it cannot be opened.
  explicit PanelFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return mapping_->path(); }
  const PanelIndex& index() const { return index_; }
  const PanelEntry* find(std::string_view name, PanelEntryKind kind) const;
  const std::byte* data(const PanelEntry& entry) const { return mapping_->bytes().data() + entry.offset; }
  const std::shared_ptr<const MappedFile>& mapping() const { return mapping_; }

  std::int64_t pieces() const { return static_cast<std::int64_t>(index_.checksums.size()); }
  // Makes a piece resident and compares its checksum; false too where it cannot be read. From any thread.
  bool piece_is_intact(std::int64_t piece) const;

 private:
  std::shared_ptr<const MappedFile> mapping_;
  PanelIndex index_;
};

// What is written: borrowed bytes of the entry's size.
struct PanelContent {
  PanelEntry entry;  // the offset is computed here
  const std::byte* data = nullptr;
};

enum class PanelWrite : std::uint8_t { written, stopped, outdated, busy };

// Writes `target` so that it appears whole or not at all: a temporary sibling, one per target and locked while it is
// written, fsync, rename, fsync of the directory. `busy`: another process is writing it. `may_publish` is asked before
// the rename (false: `outdated`), `stop` before every piece (true: `stopped`; may be empty). The file gets the access
// `mode`. Error (runtime): cannot write, disk full.
PanelWrite write_panel_file(const std::filesystem::path& target, const Fingerprint& fingerprint,
                            std::vector<PanelContent> contents, mode_t mode, const std::function<bool()>& stop,
                            const std::function<bool()>& may_publish);
// Bytes such a file will have.
std::uint64_t panel_file_bytes(std::span<const PanelContent> contents);

}  // namespace outrider
