// Any bytes as a panel file, as they are and with an index that is sealed anew: entries inside the file and apart from
// each other, checksums that can be compared, or Error (data).
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "weights/panel_file.h"
#include "weights/panel_index.h"

namespace {

void check(std::span<const std::byte> file) {
  const outrider::PanelIndex index = outrider::parse_panels(file, "fuzz");
  std::uint64_t total = 0;
  for (const auto& [name, entry] : index.entries) {
    if (entry.offset > file.size() || entry.bytes() > file.size() - entry.offset) std::abort();
    total += entry.bytes();
  }
  if (total > file.size()) std::abort();
  const int descriptor = memfd_create("fuzz", 0);
  if (descriptor < 0 || write(descriptor, file.data(), file.size()) != static_cast<ssize_t>(file.size())) std::abort();
  const outrider::PanelFile opened("/proc/self/fd/" + std::to_string(descriptor));
  close(descriptor);
  for (std::int64_t piece = 0; piece < opened.pieces(); ++piece) opened.piece_is_intact(piece);
}

void guarded(std::span<const std::byte> file) {
  try {
    check(file);
  } catch (const outrider::Error& error) {
    if (error.kind() != outrider::ErrorKind::data) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> file(size);
  if (size > 0) std::memcpy(file.data(), data, size);
  guarded(file);
  // A hash would stop every mutation of the index: seal it as a hostile writer would.
  std::uint64_t table_bytes = 0;
  if (size < outrider::kPanelHeaderBytes) return 0;
  std::memcpy(&table_bytes, file.data() + 24, sizeof table_bytes);
  if (table_bytes > size - outrider::kPanelHeaderBytes) return 0;
  const std::span<const std::byte> bytes(file);
  const auto seal = outrider::panel_seal(bytes, bytes.subspan(outrider::kPanelHeaderBytes, table_bytes));
  std::memcpy(file.data() + outrider::kPanelSealedBytes, seal.data(), seal.size());
  guarded(file);
  return 0;
}
