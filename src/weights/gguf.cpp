#include "weights/gguf.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "weights/file_error.h"

namespace outrider {
namespace {

constexpr std::uint64_t kMaxCount = 1'000'000;
constexpr std::size_t kMaxTensorName = 64;
constexpr std::size_t kMaxKey = 65535;
constexpr std::uint32_t kMaxRank = 4;
constexpr std::uint64_t kDefaultAlignment = 32;

struct TypeRow {
  std::uint32_t id;
  std::string_view name;
  GgufBlock block;  // bytes 0: known, not supported
};
constexpr std::array<TypeRow, 34> kTypes{
    {{0, "F32", {1, 4}},       {1, "F16", {1, 2}},       {2, "Q4_0", {32, 18}},    {3, "Q4_1", {32, 20}},
     {6, "Q5_0", {32, 22}},    {7, "Q5_1", {32, 24}},    {8, "Q8_0", {32, 34}},    {9, "Q8_1", {}},
     {10, "Q2_K", {256, 84}},  {11, "Q3_K", {256, 110}}, {12, "Q4_K", {256, 144}}, {13, "Q5_K", {256, 176}},
     {14, "Q6_K", {256, 210}}, {15, "Q8_K", {}},         {16, "IQ2_XXS", {}},      {17, "IQ2_XS", {}},
     {18, "IQ3_XXS", {}},      {19, "IQ1_S", {}},        {20, "IQ4_NL", {}},       {21, "IQ3_S", {}},
     {22, "IQ2_S", {}},        {23, "IQ4_XS", {}},       {24, "I8", {}},           {25, "I16", {}},
     {26, "I32", {}},          {27, "I64", {}},          {28, "F64", {}},          {29, "IQ1_M", {}},
     {30, "BF16", {1, 2}},     {34, "TQ1_0", {}},        {35, "TQ2_0", {}},        {39, "MXFP4", {32, 17}},
     {40, "NVFP4", {}},        {41, "Q1_0", {}}}};

const TypeRow* type_row(std::uint32_t id) {
  const auto it = std::find_if(kTypes.begin(), kTypes.end(), [id](const TypeRow& row) { return row.id == id; });
  return it == kTypes.end() ? nullptr : &*it;
}

enum ValueType : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
constexpr std::array<std::uint64_t, 13> kValueBytes{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

class Cursor {
 public:
  Cursor(std::span<const std::byte> file, std::string_view origin) : file_(file), origin_(origin) {}

  std::uint64_t position() const { return at_; }
  std::uint64_t remaining() const { return file_.size() - at_; }
  template <class T>
  T take(std::string_view what) {
    if (remaining() < sizeof(T))
      throw file_error(origin_, fmt::format("ends at byte {} inside {} (truncated?)", file_.size(), what));
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string take_string(std::string_view what) {
    const auto length = take<std::uint64_t>(what);
    if (length > remaining())
      throw file_error(origin_, fmt::format("{} claims {} bytes, {} remain in the file", what, length, remaining()));
    std::string out(reinterpret_cast<const char*>(file_.data()) + at_, length);
    at_ += length;
    return out;
  }
  [[noreturn]] void fail(std::string_view fact, std::string hint = kGetAnew) const {
    throw file_error(origin_, fact, std::move(hint));
  }

 private:
  std::span<const std::byte> file_;
  std::string_view origin_;
  std::uint64_t at_ = 0;
};

std::int64_t take_integer(Cursor& in, std::uint32_t type, std::string_view what) {
  switch (type) {
    case kU8:
      return in.take<std::uint8_t>(what);
    case kI8:
      return in.take<std::int8_t>(what);
    case kU16:
      return in.take<std::uint16_t>(what);
    case kI16:
      return in.take<std::int16_t>(what);
    case kU32:
      return in.take<std::uint32_t>(what);
    case kI32:
      return in.take<std::int32_t>(what);
    case kI64:
      return in.take<std::int64_t>(what);
    default:
      break;
  }
  const auto value = in.take<std::uint64_t>(what);
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    in.fail(fmt::format("{} is {}, the limit is 2^63 - 1", what, value));
  return static_cast<std::int64_t>(value);
}

bool take_bool(Cursor& in, std::string_view what) {
  const auto value = in.take<std::uint8_t>(what);
  if (value > 1) in.fail(fmt::format("{} is a bool of value {} (accepted: 0, 1)", what, value));
  return value == 1;
}

double take_float(Cursor& in, std::uint32_t type, std::string_view what) {
  return type == kF32 ? in.take<float>(what) : in.take<double>(what);
}

template <class T, class Take>
GgufValue take_list(std::uint64_t count, Take take) {
  std::vector<T> out;
  out.reserve(count);  // the caller has checked that the file holds this many
  for (std::uint64_t i = 0; i < count; ++i) out.push_back(take());
  return out;
}

GgufValue take_array(Cursor& in, const std::string& what) {
  const auto type = in.take<std::uint32_t>(what);
  const auto count = in.take<std::uint64_t>(what);
  if (type == kArray) in.fail(fmt::format("{} is an array of arrays (nesting limit 1)", what));
  if (type > kF64) in.fail(fmt::format("{} is an array of unknown type {}", what, type));
  if (count > in.remaining() / kValueBytes[type])
    in.fail(fmt::format("{} claims {} items, {} bytes remain in the file", what, count, in.remaining()));
  switch (type) {
    case kString:
      return take_list<std::string>(count, [&] { return in.take_string(what); });
    case kBool:
      return take_list<bool>(count, [&] { return take_bool(in, what); });
    case kF32:
    case kF64:
      return take_list<double>(count, [&] { return take_float(in, type, what); });
    default:
      return take_list<std::int64_t>(count, [&] { return take_integer(in, type, what); });
  }
}

GgufValue take_value(Cursor& in, const std::string& what) {
  const auto type = in.take<std::uint32_t>(what);
  switch (type) {
    case kArray:
      return take_array(in, what);
    case kString:
      return in.take_string(what);
    case kBool:
      return take_bool(in, what);
    case kF32:
    case kF64:
      return take_float(in, type, what);
    default:
      break;
  }
  if (type > kF64) in.fail(fmt::format("{} has unknown value type {}", what, type));
  return take_integer(in, type, what);
}

void take_metadata(Cursor& in, std::uint64_t count, GgufHeader& header) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string key = in.take_string("a metadata key");
    if (key.empty() || key.size() > kMaxKey)
      in.fail(fmt::format("metadata key of {} bytes (limit 1..{})", key.size(), kMaxKey));
    if (header.metadata.contains(key)) in.fail(fmt::format("duplicate key {}", in_quotes(key)));
    header.metadata.emplace(key, take_value(in, fmt::format("key {}", in_quotes(key))));
  }
}

GgufTensor take_tensor(Cursor& in) {
  GgufTensor t;
  t.name = in.take_string("a tensor name");
  if (t.name.empty() || t.name.size() > kMaxTensorName)
    in.fail(fmt::format("tensor name of {} bytes (limit 1..{}): {}", t.name.size(), kMaxTensorName, in_quotes(t.name)));
  const std::string what = fmt::format("tensor {}", in_quotes(t.name));
  const auto rank = in.take<std::uint32_t>(what);
  if (rank < 1 || rank > kMaxRank) in.fail(fmt::format("{}: rank {} (accepted: 1..{})", what, rank, kMaxRank));
  std::uint64_t values = 1;
  for (std::uint32_t d = 0; d < rank; ++d) {
    const auto dim = in.take<std::uint64_t>(what);
    if (dim == 0 || dim > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        __builtin_mul_overflow(values, dim, &values) || values > 1ull << 60)
      in.fail(fmt::format("{}: dimension {} is {} (accepted: 1 or more, 2^60 values in all)", what, d, dim));
    t.dims.push_back(static_cast<std::int64_t>(dim));
  }
  const auto type = in.take<std::uint32_t>(what);
  const TypeRow* row = type_row(type);
  if (row == nullptr) in.fail(fmt::format("{}: unknown type {}", what, type));
  if (row->block.bytes == 0)
    in.fail(fmt::format("{}: type {} is not available in this version", what, row->name),
            "accepted: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, MXFP4");
  t.type = static_cast<GgufType>(type);
  if (t.dims[0] % row->block.values != 0)
    in.fail(fmt::format("{}: width {} is not a multiple of the {} block of {}", what, t.dims[0], row->name,
                        row->block.values));
  t.bytes = values / static_cast<std::uint64_t>(row->block.values) * static_cast<std::uint64_t>(row->block.bytes);
  t.offset = in.take<std::uint64_t>(what);
  return t;
}

// Tensors follow each other with padding to the alignment only: no overlap, no hole.
void check_spans(GgufHeader& header, std::uint64_t alignment, std::uint64_t data_begin, std::uint64_t file_bytes,
                 std::string_view origin) {
  auto& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::uint64_t expected = 0;
  for (GgufTensor& t : tensors) {
    const std::uint64_t room = file_bytes > data_begin ? file_bytes - data_begin : 0;
    if (t.offset % alignment != 0)
      throw tensor_error(origin, t.name,
                         fmt::format("offset {} is not a multiple of the alignment {}", t.offset, alignment));
    if (t.offset > room || t.bytes > room - t.offset)
      throw tensor_error(origin, t.name,
                         fmt::format("needs {} bytes at offset {}, the file holds {} bytes of data (truncated?)",
                                     t.bytes, t.offset, room));
    if (t.offset != expected)
      throw tensor_error(origin, t.name,
                         fmt::format("begins at offset {}, the tensor before it ends at {} ({})", t.offset, expected,
                                     t.offset < expected ? "overlap" : "hole"));
    expected = (t.offset + t.bytes + alignment - 1) / alignment * alignment;
    t.offset += data_begin;
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].name == tensors[i - 1].name) throw tensor_error(origin, tensors[i].name, "duplicate name");
}

std::uint64_t alignment_of(const GgufHeader& header, std::string_view origin) {
  const auto it = header.metadata.find("general.alignment");
  if (it == header.metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<std::int64_t>(&it->second);
  if (value == nullptr || *value < 8 || *value % 8 != 0 || *value > 1 << 30)
    throw file_error(origin, fmt::format("general.alignment is {} (accepted: multiples of 8 up to 2^30)",
                                         value == nullptr ? -1 : *value));
  return static_cast<std::uint64_t>(*value);
}

}  // namespace

std::string_view name_of(GgufType type) { return type_row(static_cast<std::uint32_t>(type))->name; }
GgufBlock block_of(GgufType type) { return type_row(static_cast<std::uint32_t>(type))->block; }

std::int64_t GgufTensor::rows() const {
  std::int64_t rows = 1;
  for (std::size_t d = 1; d < dims.size(); ++d) rows *= dims[d];
  return rows;
}
std::int64_t GgufTensor::row_bytes() const { return dims[0] / block_of(type).values * block_of(type).bytes; }

GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view origin) {
  Cursor in(file, origin);
  GgufHeader header;
  const auto magic = in.take<std::uint32_t>("the magic");
  if (magic != 0x46554747u) in.fail(fmt::format("does not begin with GGUF (magic {:08x})", magic));
  header.version = in.take<std::uint32_t>("the version");
  if (header.version == 0x02000000u || header.version == 0x03000000u)
    in.fail("is a big-endian GGUF file (accepted: little-endian)");
  if (header.version != 2 && header.version != 3)
    in.fail(fmt::format("GGUF version {} (accepted: 2, 3)", header.version));
  const auto tensors = in.take<std::uint64_t>("the tensor count");
  const auto keys = in.take<std::uint64_t>("the key count");
  if (tensors > kMaxCount) in.fail(fmt::format("{} tensors, the limit is {}", tensors, kMaxCount));
  if (keys > kMaxCount) in.fail(fmt::format("{} metadata keys, the limit is {}", keys, kMaxCount));
  take_metadata(in, keys, header);
  for (std::uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(take_tensor(in));
  const std::uint64_t alignment = alignment_of(header, origin);
  const std::uint64_t data_begin = (in.position() + alignment - 1) / alignment * alignment;
  check_spans(header, alignment, data_begin, file.size(), origin);
  return header;
}

}  // namespace outrider
