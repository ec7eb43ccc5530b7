// Writing a panel file (panel_file.h): pieces in the order of the file, then the index, then the rename.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "weights/file_error.h"
#include "weights/panel_index.h"
#include "weights/safetensors_writer.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view doing) {
  throw Error(ErrorKind::runtime, fmt::format("cannot {} {}: {}", doing, path.string(), std::strerror(errno)));
}

// The temporary sibling of a target, open and locked. One name per target, so that what a killed process left is taken
// over by the next, and a second process sees that one is at work.
class LockedTemporary {
 public:
  explicit LockedTemporary(const fs::path& target)
      : path_(target.parent_path() / ("." + target.filename().string() + ".tmp")) {
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (descriptor_ < 0) fail(path_, "create");
    struct stat status{};
    if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) give_up("lock", EEXIST);
    const bool taken = flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (!taken && errno != EWOULDBLOCK) give_up("lock", errno);
    if (!taken || !still_named()) {
      close(std::exchange(descriptor_, -1));
    } else if (ftruncate(descriptor_, 0) != 0) {
      const int error = errno;
      unlink(path_.c_str());
      give_up("empty", error);
    }
  }
  LockedTemporary(const LockedTemporary&) = delete;
  LockedTemporary& operator=(const LockedTemporary&) = delete;
  ~LockedTemporary() { drop(); }

  bool locked() const { return descriptor_ >= 0; }

  void write(std::uint64_t begin, std::span<const std::byte> bytes) {
    std::uint64_t at = begin;
    while (!bytes.empty()) {
      const ssize_t n = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n == 0) errno = EIO;
      if (n <= 0) fail(path_, "write");
      at += static_cast<std::uint64_t>(n);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
#ifdef SYNC_FILE_RANGE_WRITE
    // Written out as it grows: no burst at the end, and few dirty pages at any time.
    sync_file_range(descriptor_, static_cast<off_t>(begin), static_cast<off_t>(at - begin), SYNC_FILE_RANGE_WRITE);
#endif
  }
  void publish(const fs::path& target, mode_t mode) {
    if (fchmod(descriptor_, mode) != 0) fail(path_, "set the access of");
    if (fsync(descriptor_) != 0) fail(path_, "sync");
    if (rename(path_.c_str(), target.c_str()) != 0) fail(target, "rename to");
    close(std::exchange(descriptor_, -1));  // the name is gone: nothing is left to drop
    sync_directory(target.parent_path());
  }

 private:
  // For the constructor, after which no destructor runs.
  [[noreturn]] void give_up(std::string_view doing, int error) {
    close(std::exchange(descriptor_, -1));
    errno = error;
    fail(path_, doing);
  }
  // Whoever held the lock may have published the file meanwhile: it must not be touched under its new name.
  bool still_named() const {
    struct stat ours{}, named{};
    return fstat(descriptor_, &ours) == 0 && lstat(path_.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
  }
  void drop() {
    if (descriptor_ < 0) return;
    unlink(path_.c_str());
    close(std::exchange(descriptor_, -1));
  }

  fs::path path_;
  int descriptor_ = -1;  // -1: another process is at work
};

template <class T>
void put(std::vector<std::byte>& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

// Sizes and offsets of a file of these contents, in the order of their names.
PanelIndex laid_out(std::vector<PanelContent>& contents, std::uint64_t& table_bytes) {
  std::sort(contents.begin(), contents.end(), [](const auto& a, const auto& b) { return a.entry.name < b.entry.name; });
  PanelIndex index;
  std::uint64_t entries = 0, data = 0;
  for (const PanelContent& content : contents) {
    entries += kPanelEntryBytes + content.entry.name.size();
    data += panel_aligned(content.entry.bytes());
  }
  table_bytes = entries + piece_slots(data) * sizeof(std::uint64_t);
  index.data_begin = panel_aligned(kPanelHeaderBytes + table_bytes);
  index.file_bytes = index.data_begin + data;
  index.checksums.resize(piece_slots(data));
  std::uint64_t at = index.data_begin;
  for (PanelContent& content : contents) {
    content.entry.offset = at;
    at += panel_aligned(content.entry.bytes());
  }
  return index;
}

std::vector<std::byte> index_bytes(const PanelIndex& index, std::span<const PanelContent> contents,
                                   std::uint64_t table_bytes) {
  std::vector<std::byte> out;
  for (const char c : kPanelMagic) put(out, c);
  put(out, kPanelLayoutVersion);
  put(out, kPanelByteOrder);
  put(out, index.file_bytes);
  put(out, table_bytes);
  put(out, static_cast<std::uint64_t>(contents.size()));
  put(out, index.data_begin);
  put(out, index.fingerprint);
  std::vector<std::byte> table;
  for (const PanelContent& content : contents) {
    const PackedMatrix& form = content.entry.form;
    put(table, static_cast<std::uint16_t>(content.entry.name.size()));
    put(table, static_cast<std::uint8_t>(content.entry.kind));
    put(table, static_cast<std::uint8_t>(form.kind));
    put(table, static_cast<std::uint8_t>(form.scale_type));
    put(table, static_cast<std::uint8_t>(form.bits));
    put(table, static_cast<std::uint16_t>(form.group));
    put(table, form.n);
    put(table, form.k);
    put(table, content.entry.offset);
    for (const char c : content.entry.name) put(table, c);
  }
  for (const std::uint64_t checksum : index.checksums) put(table, checksum);
  OUTRIDER_CHECK(table.size() == table_bytes, "table of {} bytes, planned {}", table.size(), table_bytes);
  put(out, panel_seal(out, table));
  out.insert(out.end(), table.begin(), table.end());
  return out;
}

// Copies what the contents hold of file bytes [begin, begin + piece.size()); the rest is zero.
void fill(std::uint64_t begin, std::span<std::byte> piece, std::span<const PanelContent> contents) {
  std::fill(piece.begin(), piece.end(), std::byte{0});
  const std::uint64_t end = begin + piece.size();
  auto content = std::upper_bound(contents.begin(), contents.end(), begin,
                                  [](std::uint64_t at, const PanelContent& c) { return at < c.entry.offset; });
  if (content != contents.begin()) --content;
  for (; content != contents.end() && content->entry.offset < end; ++content) {
    const std::uint64_t from = std::max(begin, content->entry.offset);
    const std::uint64_t to = std::min(end, content->entry.offset + content->entry.bytes());
    if (from < to)
      std::memcpy(piece.data() + (from - begin), content->data + (from - content->entry.offset), to - from);
  }
}

}  // namespace

std::uint64_t panel_file_bytes(std::span<const PanelContent> contents) {
  std::vector<PanelContent> copy(contents.begin(), contents.end());
  std::uint64_t table_bytes = 0;
  return laid_out(copy, table_bytes).file_bytes;
}

PanelWrite write_panel_file(const fs::path& target, const Fingerprint& fingerprint, std::vector<PanelContent> contents,
                            mode_t mode, const std::function<bool()>& stop, const std::function<bool()>& may_publish) {
  std::uint64_t table_bytes = 0;
  PanelIndex index = laid_out(contents, table_bytes);
  index.fingerprint = fingerprint;
  LockedTemporary file(target);
  if (!file.locked()) return PanelWrite::busy;
  std::vector<std::byte> buffer(kPanelPieceBytes);
  const std::uint64_t pieces = piece_count(index.data_begin, index.file_bytes);
  for (std::uint64_t i = 0; i < pieces; ++i) {
    if (stop && stop()) return PanelWrite::stopped;
    // The first write begins at the start of its piece, so that every write is a whole large page.
    const std::uint64_t begin = (first_piece(index.data_begin) + i) * kPanelPieceBytes;
    const std::uint64_t end = std::min<std::uint64_t>(begin + kPanelPieceBytes, index.file_bytes);
    const std::span<std::byte> piece(buffer.data(), end - begin);
    fill(begin, piece, contents);
    const std::uint64_t data = std::max(begin, index.data_begin) - begin;
    index.checksums[i] = panel_checksum(std::span<const std::byte>(piece).subspan(data));
    file.write(begin, piece);
  }
  file.write(0, index_bytes(index, contents, table_bytes));
  if (stop && stop()) return PanelWrite::stopped;
  if (!may_publish()) return PanelWrite::outdated;
  file.publish(target, mode);
  return PanelWrite::written;
}

}  // namespace outrider
