// The opened file: split sets, tensor bytes, typed metadata.
#include <algorithm>
#include <set>
#include <utility>

#include "weights/file_error.h"
#include "weights/gguf.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// Split members are named <base>-00001-of-0000n.gguf.
fs::path split_member(const fs::path& first, std::int64_t index, std::int64_t count) {
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", 1, count);
  const std::string name = first.filename().string();
  if (!name.ends_with(suffix))
    throw file_error(
        first.string(),
        fmt::format("is one of {} split files and must be opened as the first, named <name>{}", count, suffix),
        "give the first file");
  return first.parent_path() /
         (name.substr(0, name.size() - suffix.size()) + fmt::format("-{:05}-of-{:05}.gguf", index + 1, count));
}

std::string shown(const GgufValue& value) {
  if (const auto* v = std::get_if<bool>(&value)) return *v ? "true" : "false";
  if (const auto* v = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *v);
  if (const auto* v = std::get_if<double>(&value)) return fmt::format("{}", *v);
  if (const auto* v = std::get_if<std::string>(&value)) return in_quotes(*v);
  return "a list";
}

// The value of a key as type T, nullptr if absent.
template <class T>
const T* typed(const GgufFile& file, std::string_view key, std::string_view accepted) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) return nullptr;
  if (const T* value = std::get_if<T>(&it->second)) return value;
  throw file_error(file.path().string(), fmt::format("{} is {} (accepted: {})", key, shown(it->second), accepted));
}

std::int64_t split_integer(const GgufHeader& header, std::string_view key, std::int64_t fallback) {
  const auto it = header.metadata.find(key);
  if (it == header.metadata.end()) return fallback;
  const auto* value = std::get_if<std::int64_t>(&it->second);
  return value == nullptr ? -1 : *value;
}

}  // namespace

GgufFile::GgufFile(const fs::path& path) {
  std::int64_t count = 1;
  for (std::int64_t index = 0; index < count; ++index) {
    files_.emplace_back(index == 0 ? path : split_member(path, index, count));
    const MappedFile& file = files_.back();
    const std::string origin = file.path().string();
    GgufHeader header = parse_gguf(file.bytes(), origin);
    file.drop_pages(0, file.bytes().size());
    const std::int64_t declared = split_integer(header, "split.count", 1);
    const std::int64_t number = split_integer(header, "split.no", 0);
    if (declared < 0 || declared > 10000)
      throw file_error(origin, fmt::format("split.count is {} (accepted: 1..10000)", declared));
    if (index == 0) count = std::max<std::int64_t>(declared, 1);
    if (number != index || std::max<std::int64_t>(declared, 1) != count)
      throw file_error(origin,
                       fmt::format("is part {} of {} (expected part {} of {})", number + 1, declared, index + 1, count),
                       "open the first part; all parts must lie beside it");
    if (index == 0 && count > 1) split_member(path, 0, count);  // checks the name
    for (GgufTensor& tensor : header.tensors) {
      tensor.file = static_cast<std::size_t>(index);
      tensors_.push_back(std::move(tensor));
    }
    if (index == 0) metadata_ = std::move(header.metadata);
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors_.size(); ++i)
    if (tensors_[i].name == tensors_[i - 1].name)
      throw tensor_error(path.string(), tensors_[i].name, "is in two parts of the split file");
  const auto total = integer("split.tensors.count", 0, 1'000'000);
  if (count > 1 && total && *total != static_cast<std::int64_t>(tensors_.size()))
    throw file_error(path.string(),
                     fmt::format("split.tensors.count is {}, the parts hold {}", *total, tensors_.size()));
}

std::vector<OpenedFile> GgufFile::files() const {
  std::vector<OpenedFile> out;
  for (const MappedFile& file : files_) out.push_back({file.path(), file.identity()});
  return out;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const GgufTensor& t, std::string_view key) { return t.name < key; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

std::span<const std::byte> GgufFile::bytes(const GgufTensor& tensor) const {
  const MappedFile& file = files_[tensor.file];
  std::error_code failed;
  const std::uintmax_t now = fs::file_size(file.path(), failed);
  if (failed || now < file.bytes().size())
    throw tensor_error(
        file.path().string(), tensor.name,
        fmt::format("the file had {} bytes when opened and has {} now", file.bytes().size(), failed ? 0 : now),
        "do not change a model while it is in use");
  return file.bytes().subspan(tensor.offset, tensor.bytes);
}

void GgufFile::drop(const GgufTensor& tensor, std::uint64_t begin, std::uint64_t end) const {
  files_[tensor.file].drop_pages(tensor.offset + begin, end - begin);
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const std::string accepted = fmt::format("an integer {}..{}", low, high);
  const auto* value = typed<std::int64_t>(*this, key, accepted);
  if (value == nullptr) return std::nullopt;
  if (*value < low || *value > high)
    throw file_error(path().string(), fmt::format("{} is {} (accepted: {})", key, *value, accepted));
  return *value;
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const auto* value = typed<double>(*this, key, "a float");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
std::optional<bool> GgufFile::flag(std::string_view key) const {
  const auto* value = typed<bool>(*this, key, "a bool");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
std::optional<std::string> GgufFile::text(std::string_view key) const {
  const auto* value = typed<std::string>(*this, key, "a string");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
const std::vector<std::string>* GgufFile::texts(std::string_view key) const {
  return typed<std::vector<std::string>>(*this, key, "a list of strings");
}
const std::vector<std::int64_t>* GgufFile::integers(std::string_view key) const {
  return typed<std::vector<std::int64_t>>(*this, key, "a list of integers");
}
const std::vector<double>* GgufFile::numbers(std::string_view key) const {
  return typed<std::vector<double>>(*this, key, "a list of floats");
}

}  // namespace outrider
