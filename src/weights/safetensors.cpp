#include "weights/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "weights/file_error.h"
#include "weights/json_strict.h"

namespace outrider {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the cap of the reference crate
constexpr std::size_t kMaxTensors = 1'000'000;
constexpr std::size_t kMaxNameBytes = 512;
constexpr std::size_t kMaxRank = 8;
constexpr int kMaxDepth = 4;

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<DtypeRow, 16> kDtypes{{{Dtype::BOOL, "BOOL", 1},
                                            {Dtype::U8, "U8", 1},
                                            {Dtype::I8, "I8", 1},
                                            {Dtype::U16, "U16", 2},
                                            {Dtype::I16, "I16", 2},
                                            {Dtype::U32, "U32", 4},
                                            {Dtype::I32, "I32", 4},
                                            {Dtype::U64, "U64", 8},
                                            {Dtype::I64, "I64", 8},
                                            {Dtype::F16, "F16", 2},
                                            {Dtype::BF16, "BF16", 2},
                                            {Dtype::F32, "F32", 4},
                                            {Dtype::F64, "F64", 8},
                                            {Dtype::F8_E4M3, "F8_E4M3", 1},
                                            {Dtype::F8_E5M2, "F8_E5M2", 1},
                                            {Dtype::F8_E8M0, "F8_E8M0", 1}}};

// The header as events: no document is built, so a hostile header of 100 MB costs little more than its tensors.
class HeaderReader final : public nlohmann::json::json_sax_t {
 public:
  explicit HeaderReader(std::string_view origin) : origin_(origin) {}
  SafetensorsHeader take() { return std::move(header_); }

  // MLX writes "__metadata__": null when it has none.
  bool null() override { return (depth_ == 1 && in_metadata_) || scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t value) override { return scalar(fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override { return scalar(in_quotes(text)); }
  bool binary(binary_t&) override { return false; }
  bool number_unsigned(number_unsigned_t value) override {
    if (field_ == Field::shape && depth_ == 3) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail(fmt::format("dimension {} exceeds 2^63 - 1", value));
      if (entry_.shape.size() == kMaxRank) fail(fmt::format("rank exceeds the limit of {}", kMaxRank));
      entry_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (field_ == Field::offsets && depth_ == 3) {
      if (offsets_.size() == 2) fail("data_offsets has more than 2 numbers");
      offsets_.push_back(value);
      return true;
    }
    return scalar(fmt::format("{}", value));
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[key_] = std::move(value);
      return true;
    }
    if (depth_ == 2 && field_ == Field::dtype) {
      const auto dtype = dtype_from(value);
      if (!dtype) fail(fmt::format("unknown dtype {}", in_quotes(value)));
      entry_.dtype = *dtype;
      return true;
    }
    return scalar(in_quotes(value));
  }
  bool start_object(std::size_t) override {
    if (depth_ >= 2 && field_ != Field::other) scalar("an object");
    deeper();
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    if (--depth_ == 1 && !in_metadata_) finish_entry();
    return true;
  }
  bool start_array(std::size_t) override {
    const bool expected = depth_ == 2 && !in_metadata_ && field_ != Field::dtype;
    if (!expected && field_ != Field::other) scalar("an array");
    if (depth_ < 2) scalar("an array");
    deeper();
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      start_entry(value);
      return true;
    }
    if (!keys_.back().insert(value).second) fail(fmt::format("duplicate key {}", in_quotes(value)));
    if (depth_ == 2) {
      key_ = value;
      field_ = in_metadata_              ? Field::metadata
               : value == "dtype"        ? Field::dtype
               : value == "shape"        ? Field::shape
               : value == "data_offsets" ? Field::offsets
                                         : Field::other;
      if (field_ != Field::other && field_ != Field::metadata) seen_ |= 1u << static_cast<int>(field_);
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception&) override {
    throw file_error(origin_, "header is " + json_fault(position, token));
  }

 private:
  enum class Field { dtype, shape, offsets, metadata, other };

  [[noreturn]] void fail(std::string_view fact) const {
    if (depth_ < 1 || entry_.name.empty()) throw file_error(origin_, fact);
    throw tensor_error(origin_, entry_.name, fact);
  }
  void deeper() {
    if (++depth_ > kMaxDepth) fail(fmt::format("header nested deeper than the limit of {}", kMaxDepth));
  }
  // A value where the format has another kind of one; ignored inside keys that are not the format's.
  bool scalar(std::string_view what) const {
    if (depth_ == 0) throw file_error(origin_, "header is not a JSON object");
    if (depth_ == 1) fail(fmt::format("is {}, not an object", what));
    if (in_metadata_) fail(fmt::format("value of {} is {}, not a string", in_quotes(key_), what));
    if (field_ == Field::dtype) fail(fmt::format("dtype is {}, not a string", what));
    if (field_ == Field::shape) fail(fmt::format("shape holds {}, not a list of non-negative integers", what));
    if (field_ == Field::offsets) fail(fmt::format("data_offsets holds {}, not two non-negative integers", what));
    return true;
  }
  void start_entry(const std::string& name) {
    entry_ = StoredTensor();
    entry_.name = name;
    offsets_.clear();
    seen_ = 0;
    field_ = Field::other;
    in_metadata_ = name == "__metadata__";
    if (name.empty() || name.size() > kMaxNameBytes)
      throw file_error(origin_, fmt::format("tensor name of {} bytes (limit 1..{}): {}", name.size(), kMaxNameBytes,
                                            in_quotes(name)));
    if (name.find('\0') != std::string::npos) fail("name contains a NUL byte");
    if (!names_.insert(name).second) fail("duplicate key");
    if (names_.size() > kMaxTensors + 1) throw file_error(origin_, fmt::format("more than {} tensors", kMaxTensors));
  }
  void finish_entry() {
    if (seen_ != 7u) fail("needs dtype, shape and data_offsets");
    if (offsets_.size() != 2) fail(fmt::format("data_offsets has {} numbers, not 2", offsets_.size()));
    entry_.offset = offsets_[0];
    if (offsets_[1] < offsets_[0]) fail(fmt::format("data_offsets [{}, {}] run backwards", offsets_[0], offsets_[1]));
    entry_.bytes = offsets_[1] - offsets_[0];
    std::uint64_t product = size_of(entry_.dtype);
    for (const std::int64_t dim : entry_.shape)
      if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(dim), &product))
        fail(fmt::format("shape {} overflows 64 bits", shape_text(entry_.shape)));
    if (product != entry_.bytes)
      fail(fmt::format("shape {} of {} needs {} bytes, data_offsets hold {}", shape_text(entry_.shape),
                       name_of(entry_.dtype), product, entry_.bytes));
    header_.tensors.push_back(std::move(entry_));
    entry_ = StoredTensor();
  }

  std::string_view origin_;
  SafetensorsHeader header_;
  int depth_ = 0;
  bool in_metadata_ = false;
  Field field_ = Field::other;
  unsigned seen_ = 0;
  StoredTensor entry_;
  std::vector<std::uint64_t> offsets_;
  std::string key_;
  std::vector<std::set<std::string>> keys_;  // of the open objects
  std::unordered_set<std::string> names_;
};

// Rule 7 (and 6): the tensors tile the data exactly. Moves offsets from "after the header" to "in the file".
void check_spans(SafetensorsHeader& header, std::uint64_t data_begin, std::uint64_t data_bytes,
                 std::string_view origin) {
  auto& tensors = header.tensors;
  for (const StoredTensor& t : tensors)
    if (t.offset > data_bytes || t.bytes > data_bytes - t.offset)
      throw tensor_error(origin, t.name,
                         fmt::format("data_offsets end at {}, the file holds {} bytes of data (truncated?)",
                                     t.offset + t.bytes, data_bytes));
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
  });
  std::uint64_t expected = 0;
  for (const StoredTensor& t : tensors) {
    if (t.offset < expected)
      throw tensor_error(origin, t.name,
                         fmt::format("begins at {}, inside the tensor that ends at {} (overlap)", t.offset, expected));
    if (t.offset > expected)
      throw tensor_error(origin, t.name,
                         fmt::format("begins at {}, the bytes from {} belong to no tensor (hole)", t.offset, expected));
    expected += t.bytes;
  }
  if (expected != data_bytes)
    throw file_error(origin, fmt::format("tensors end at {}, the file holds {} bytes of data", expected, data_bytes));
  for (StoredTensor& t : tensors) t.offset += data_begin;
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
}

}  // namespace

std::string_view name_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }
std::size_t size_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bytes; }
std::optional<Dtype> dtype_from(std::string_view name) {
  for (const DtypeRow& row : kDtypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view origin) {
  if (file.size() < 8)
    throw file_error(origin, fmt::format("{} bytes, a safetensors file has at least 8", file.size()));
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length < 2 || length > kMaxHeaderBytes)
    throw file_error(origin, fmt::format("header length {} (accepted: 2..{})", length, kMaxHeaderBytes));
  if (length > file.size() - 8)
    throw file_error(origin,
                     fmt::format("header length {}, but only {} bytes follow (truncated?)", length, file.size() - 8));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (text.front() != '{') throw file_error(origin, "header does not start with '{'");
  if (text.find('\0') != std::string_view::npos) throw file_error(origin, "header contains a NUL byte");
  HeaderReader reader(origin);
  nlohmann::json::sax_parse(text, &reader);
  SafetensorsHeader header = reader.take();
  check_spans(header, 8 + length, file.size() - 8 - length, origin);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  file_.drop_pages(0, file_.bytes().size());
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto& tensors = header_.tensors;
  const auto it = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const StoredTensor& t, std::string_view key) { return t.name < key; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  std::error_code failed;
  const std::uintmax_t now = std::filesystem::file_size(path(), failed);
  if (failed || now < file_.bytes().size())
    throw tensor_error(
        path().string(), tensor.name,
        fmt::format("the file had {} bytes when opened and has {} now", file_.bytes().size(), failed ? 0 : now),
        "do not change a model while it is in use");
  return file_.bytes().subspan(tensor.offset, tensor.bytes);
}

void SafetensorsFile::drop(const StoredTensor& tensor, std::uint64_t begin, std::uint64_t end) const {
  file_.drop_pages(tensor.offset + begin, end - begin);
}

}  // namespace outrider
