// A regular file mapped read-only. Opened once; its size comes from that descriptor (models.md 1.4 rules 1 and 9).
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace outrider {

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
  // Tells the system that these pages are no longer needed here (they leave this process's resident set).
  void drop_pages(std::size_t offset, std::size_t length) const noexcept;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace outrider
