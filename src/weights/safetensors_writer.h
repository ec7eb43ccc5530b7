// Writing a safetensors file that appears whole or not at all: temporary sibling, names sorted, header padded with
// spaces to a multiple of 8, fsync, rename, fsync of the directory (models.md 1.4).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/safetensors.h"

namespace outrider {

// Move-free, one file. Tensors are written in any order and in pieces; commit() checks that every byte was written.
// Without commit() the destructor removes the temporary file. Errors: usage (the target exists and is no regular file;
// symbolic links are followed), runtime (cannot create, disk full).
class SafetensorsWriter {
 public:
  // `tensors`: name, dtype and shape (offset and bytes are computed here). Names must be distinct (checked).
  SafetensorsWriter(const std::filesystem::path& target, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // Bytes [at, at + piece.size()) of tensor `name`.
  void write(std::string_view name, std::uint64_t at, std::span<const std::byte> piece);
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::vector<StoredTensor> tensors_;  // sorted by name
  std::uint64_t missing_bytes_ = 0;
};

// Where one-shot writers keep a whole tensor: `values` are borrowed.
struct F32Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;
};
void write_safetensors(const std::filesystem::path& target, std::span<const F32Tensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Writes `text` the same way (temporary sibling, fsync, rename, fsync of the directory), with the same errors.
void write_file_whole(const std::filesystem::path& target, std::string_view text);
// fsync of a directory, so that a rename inside it survives a power cut. Throws Error (runtime).
void sync_directory(const std::filesystem::path& directory);

}  // namespace outrider
