// A regular file mapped read-only. Opened once; its size comes from that descriptor (models.md 1.4 rules 1 and 9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace outrider {

// What tells one state of a file from another without reading it. The time of change (ctime) is the one that tools
// which restore a file's time of modification cannot set.
struct FileIdentity {
  std::uint64_t bytes = 0, inode = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};
// Of the file `path` leads to now; all zero where there is none.
FileIdentity file_identity(const std::filesystem::path& path);

// A file and the state it was opened in.
struct OpenedFile {
  std::filesystem::path path;
  FileIdentity identity;
};

// Owns the mapping. Throws Error (data) if the path is missing, not a regular file (symlinks are followed) or
// unreadable. Reading a page of a file that was truncated meanwhile raises SIGBUS: callers that need certainty use
// read().
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const FileIdentity& identity() const { return identity_; }  // when it was opened
  // Asks the system to map the file in its largest pages, for files that are read over and over (a hint only).
  void prefer_large_pages() const noexcept;
  // Makes [offset, offset + length) resident, read from the disk where need be, in one call instead of a fault per
  // page. False: some of it cannot be read any more, and touching it would raise SIGBUS. Systems that lack the call
  // answer true and fault pages in as they are touched.
  bool populate(std::size_t offset, std::size_t length) const noexcept;
  // Tells the system that these pages are no longer needed here (they leave this process's resident set).
  void drop_pages(std::size_t offset, std::size_t length) const noexcept;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  FileIdentity identity_;
};

}  // namespace outrider
