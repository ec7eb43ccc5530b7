#include "weights/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "weights/file_error.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view doing, int error) {
  throw Error(ErrorKind::runtime, fmt::format("cannot {} {}: {}", doing, path.string(), std::strerror(error)),
              error == ENOSPC ? "free disk space and try again" : "");
}

// Where a file will really appear: behind symbolic links, and never in place of a device, a fifo or a directory.
fs::path real_target(const fs::path& target) {
  std::error_code fault, absent;
  const fs::path real = fs::is_symlink(target, absent) ? fs::weakly_canonical(target, fault) : target;
  if (fault) fail(target, "resolve", fault.value());
  const fs::file_status status = fs::status(real, absent);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw Error(ErrorKind::usage, fmt::format("{} is not a regular file", target.string()),
                "name a file that may be replaced");
  return real;
}

fs::path temporary_name(const fs::path& target) {
  return target.parent_path() / fmt::format(".{}.{}.tmp", target.filename().string(), getpid());
}

int create(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(path, "create", errno);
  return descriptor;
}

void write_at(int descriptor, const fs::path& path, std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(path, "write", n < 0 ? errno : EIO);
    at += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

// Syncs, closes (the descriptor is gone afterwards) and renames.
void publish(int& descriptor, const fs::path& temporary, const fs::path& target) {
  if (fsync(descriptor) != 0) fail(temporary, "sync", errno);
  const int closed = close(std::exchange(descriptor, -1));
  if (closed != 0) fail(temporary, "close", errno);
  if (rename(temporary.c_str(), target.c_str()) != 0) fail(target, "rename to", errno);
  sync_directory(target.parent_path());
}

}  // namespace

void sync_directory(const fs::path& directory) {
  const fs::path path = directory.empty() ? fs::path(".") : directory;
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "open directory", errno);
  const int result = fsync(descriptor);
  const int error = errno;
  close(descriptor);
  // Some file systems cannot sync a directory (EINVAL): then there is nothing more to promise.
  if (result != 0 && error != EINVAL) fail(path, "sync directory", error);
}

void write_file_whole(const fs::path& wanted, std::string_view text) {
  const fs::path target = real_target(wanted);
  const fs::path temporary = temporary_name(target);
  int descriptor = create(temporary);
  try {
    write_at(descriptor, temporary, 0, std::as_bytes(std::span(text)));
    publish(descriptor, temporary, target);
  } catch (...) {
    if (descriptor >= 0) close(descriptor);
    unlink(temporary.c_str());
    throw;
  }
}

SafetensorsWriter::SafetensorsWriter(const fs::path& target, std::vector<StoredTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : target_(real_target(target)), temporary_(temporary_name(target_)), tensors_(std::move(tensors)) {
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (StoredTensor& t : tensors_) {
    t.bytes = size_of(t.dtype);
    for (const std::int64_t dim : t.shape) t.bytes *= static_cast<std::uint64_t>(dim);
    OUTRIDER_CHECK(!header.contains(t.name), "tensor {} twice", t.name);
    header[t.name] = {
        {"dtype", name_of(t.dtype)}, {"shape", t.shape}, {"data_offsets", {missing_bytes_, missing_bytes_ + t.bytes}}};
    t.offset = missing_bytes_;
    missing_bytes_ += t.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  for (StoredTensor& t : tensors_) t.offset += 8 + length;
  text.insert(0, reinterpret_cast<const char*>(&length), 8);
  descriptor_ = create(temporary_);
  try {
    write_at(descriptor_, temporary_, 0, std::as_bytes(std::span(text)));
  } catch (...) {
    close(descriptor_);
    unlink(temporary_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void SafetensorsWriter::write(std::string_view name, std::uint64_t at, std::span<const std::byte> piece) {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const StoredTensor& t, std::string_view key) { return t.name < key; });
  OUTRIDER_CHECK(it != tensors_.end() && it->name == name, "unplanned tensor {}", name);
  OUTRIDER_CHECK(at <= it->bytes && piece.size() <= it->bytes - at, "tensor {} outgrows its {} bytes", name, it->bytes);
  OUTRIDER_CHECK(piece.size() <= missing_bytes_, "tensor {} written twice", name);
  write_at(descriptor_, temporary_, it->offset + at, piece);
  missing_bytes_ -= piece.size();
}

void SafetensorsWriter::commit() {
  OUTRIDER_CHECK(missing_bytes_ == 0, "{}: {} bytes were never written", target_.string(), missing_bytes_);
  publish(descriptor_, temporary_, target_);
  temporary_.clear();
}

void write_safetensors(const fs::path& target, std::span<const F32Tensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<StoredTensor> plan;
  for (const F32Tensor& t : tensors) plan.push_back({t.name, Dtype::F32, t.shape, 0, 0});
  SafetensorsWriter writer(target, std::move(plan), metadata);
  for (const F32Tensor& t : tensors) writer.write(t.name, 0, std::as_bytes(t.values));
  writer.commit();
}

}  // namespace outrider
