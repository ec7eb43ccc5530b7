#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace outrider {
namespace {

FileIdentity identity_of(const struct stat& status) {
  const auto nanoseconds = [](const struct timespec& time) {
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  };
  return {static_cast<std::uint64_t>(status.st_size), static_cast<std::uint64_t>(status.st_ino),
          nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

FileIdentity file_identity(const std::filesystem::path& path) {
  struct stat status{};
  return stat(path.c_str(), &status) == 0 ? identity_of(status) : FileIdentity{};
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a fifo must fail below, not wait for a writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0)
    throw Error(ErrorKind::data, fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)),
                "check the path and its permissions");
  struct stat status{};
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  identity_ = identity_of(status);
  if (regular && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    void* memory = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<const std::byte*>(memory);
  }
  const int map_error = errno;
  close(descriptor);
  if (!regular) throw Error(ErrorKind::data, fmt::format("{} is not a regular file", path.string()), "give a file");
  if (status.st_size > 0 && data_ == nullptr)
    throw Error(ErrorKind::data, fmt::format("cannot map {}: {}", path.string(), std::strerror(map_error)),
                "copy it to another disk");
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      identity_(other.identity_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  MappedFile moved(std::move(other));
  std::swap(path_, moved.path_);
  std::swap(data_, moved.data_);
  std::swap(size_, moved.size_);
  std::swap(identity_, moved.identity_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop_pages(std::size_t offset, std::size_t length) const noexcept {
  if (data_ == nullptr || offset >= size_) return;
  const std::size_t page = page_bytes();
  const std::size_t begin = offset / page * page;
  const std::size_t end = length < size_ - offset ? (offset + length) / page * page : (size_ + page - 1) / page * page;
  if (end > begin) madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::prefer_large_pages() const noexcept {
#ifdef MADV_HUGEPAGE
  if (data_ != nullptr) madvise(const_cast<std::byte*>(data_), size_, MADV_HUGEPAGE);
#endif
}

bool MappedFile::populate(std::size_t offset, std::size_t length) const noexcept {
  if (data_ == nullptr || offset >= size_) return true;
#ifdef MADV_POPULATE_READ
  const std::size_t begin = offset / page_bytes() * page_bytes();
  const std::size_t end = length < size_ - offset ? offset + length : size_;
  // EINVAL: a system older than the call. What else fails is the reading.
  return madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_POPULATE_READ) == 0 || errno == EINVAL;
#else
  (void)length;
  return true;
#endif
}

}  // namespace outrider
