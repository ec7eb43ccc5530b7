// Reading the container of a GGUF file (models.md 1.11): header, metadata, tensor table, every check done before any
// tensor byte is touched. Errors (data) name file, key or tensor, fact and limit. Source: the GGUF specification.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"

namespace outrider {

// The ids of the file format. Others are refused by name.
enum class GgufType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
  MXFP4 = 39
};
std::string_view name_of(GgufType type);
struct GgufBlock {
  int values = 1;  // per block
  int bytes = 0;   // per block
};
GgufBlock block_of(GgufType type);

// A metadata value. Integers of all widths become i64 (u64 above 2^63 - 1: refused), floats become double.
using GgufValue = std::variant<bool, std::int64_t, double, std::string, std::vector<bool>, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::F32;
  std::vector<std::int64_t> dims;  // fastest first: [in, out]
  std::uint64_t offset = 0;        // in the file
  std::uint64_t bytes = 0;
  std::size_t file = 0;       // index of the split file (GgufFile::tensors)
  std::int64_t rows() const;  // product of dims[1..]
  std::int64_t row_bytes() const;
};

struct GgufHeader {
  std::uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // sorted by name
};

// Checks a whole file image. `origin` names it in messages.
GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view origin);

// A file, or the full set of a split file opened by its first member. Move-only. Safe to read from several threads.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return files_.front().path(); }
  std::vector<OpenedFile> files() const;  // in the order of the split
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // of all files, sorted by name
  const GgufTensor* find(std::string_view name) const;

  // Throws Error (data) if the file has become shorter since it was opened.
  std::span<const std::byte> bytes(const GgufTensor& tensor) const;
  void drop(const GgufTensor& tensor, std::uint64_t begin, std::uint64_t end) const;

  // Typed metadata; absent: nullopt. A value of another type, or out of range: Error (data) naming key and value.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  const std::vector<std::string>* texts(std::string_view key) const;
  const std::vector<std::int64_t>* integers(std::string_view key) const;
  const std::vector<double>* numbers(std::string_view key) const;

 private:
  std::vector<MappedFile> files_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace outrider
