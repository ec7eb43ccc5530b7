// Reading one safetensors file: mapped, with every check of models.md 1.4 rows 1 to 9 done before any tensor byte is
// touched. Layout: u64 header length n; n bytes of JSON; data. Errors (data) name file, tensor, fact and limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace outrider {

enum class Dtype : std::uint8_t {
  BOOL,
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  U64,
  I64,
  F16,
  BF16,
  F32,
  F64,
  F8_E4M3,
  F8_E5M2,
  F8_E8M0
};
std::string_view name_of(Dtype dtype);
std::optional<Dtype> dtype_from(std::string_view name);
std::size_t size_of(Dtype dtype);

struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::F32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // of its first byte in the file; may be unaligned (rule 8)
  std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
};

// Checks a whole file image (rules 2 to 7). `origin` names it in messages.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view origin);

// An open file. Move-only; spans and pointers live as long as it does. Safe to read from several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const FileIdentity& identity() const { return file_.identity(); }
  const SafetensorsHeader& header() const { return header_; }
  const StoredTensor* find(std::string_view name) const;
  // The bytes of a tensor of this file. Throws Error (data) if the file has become shorter since it was opened (rule
  // 9).
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  // The pages of [begin, end) of a tensor's bytes leave the resident set.
  void drop(const StoredTensor& tensor, std::uint64_t begin, std::uint64_t end) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace outrider
