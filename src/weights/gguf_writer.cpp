#include "weights/gguf_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "weights/float_bits.h"
#include "weights/safetensors_writer.h"

namespace outrider {
namespace {

constexpr std::size_t kAlignment = 32;

class Image {
 public:
  template <class T>
  void put(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof value);
  }
  void put_string(std::string_view text) {
    put<std::uint64_t>(text.size());
    const auto bytes = std::as_bytes(std::span(text));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void put_bytes(std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void align() { out_.resize((out_.size() + kAlignment - 1) / kAlignment * kAlignment); }
  std::vector<std::byte> take() { return std::move(out_); }

  void item(bool value) { put<std::uint8_t>(value ? 1 : 0); }
  void item(double value) { put(static_cast<float>(value)); }
  void item(const std::string& value) { put_string(value); }
  void item(std::int64_t value, bool wide) {
    if (wide)
      put(value);
    else
      put(static_cast<std::uint32_t>(value));
  }

 private:
  std::vector<std::byte> out_;
};

// Type ids of the format.
constexpr std::uint32_t kU32 = 4, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kI64 = 11;

bool wide(std::int64_t value) { return value < 0 || value > std::numeric_limits<std::uint32_t>::max(); }

struct PutValue {
  Image& image;
  void operator()(bool v) const { image.put(kBool), image.item(v); }
  void operator()(std::int64_t v) const { image.put(wide(v) ? kI64 : kU32), image.item(v, wide(v)); }
  void operator()(double v) const { image.put(kF32), image.item(v); }
  void operator()(const std::string& v) const { image.put(kString), image.item(v); }
  template <class T>
  void operator()(const std::vector<T>& list) const {
    image.put(kArray);
    if constexpr (std::is_same_v<T, std::int64_t>) {
      const bool any_wide = std::any_of(list.begin(), list.end(), wide);
      image.put(any_wide ? kI64 : kU32);
      image.put<std::uint64_t>(list.size());
      for (const std::int64_t v : list) image.item(v, any_wide);
    } else {
      image.put(std::is_same_v<T, bool> ? kBool : std::is_same_v<T, double> ? kF32 : kString);
      image.put<std::uint64_t>(list.size());
      for (const auto& v : list) image.item(static_cast<T>(v));
    }
  }
};

std::uint64_t expected_bytes(const GgufWriteTensor& tensor) {
  std::int64_t values = 1;
  for (const std::int64_t dim : tensor.dims) values *= dim;
  const GgufBlock block = block_of(tensor.type);
  return static_cast<std::uint64_t>(values / block.values * block.bytes);
}

void put_f16(std::vector<std::byte>& out, float value) {
  out.resize(out.size() + 2);
  store_float(out.data() + out.size() - 2, FloatType::f16, value);
}

// Highest code, and whether the block stores a minimum, of a block type.
struct Shape {
  int levels = 0;
  bool has_minimum = false;
  float zero = 0;  // the code of value 0 without a minimum
};
Shape shape_of(GgufType type) {
  switch (type) {
    case GgufType::Q4_0:
      return {15, false, 8};
    case GgufType::Q4_1:
      return {15, true, 0};
    case GgufType::Q5_0:
      return {31, false, 16};
    case GgufType::Q5_1:
      return {31, true, 0};
    case GgufType::Q8_0:
      return {255, false, 128};
    case GgufType::MXFP4:
      return {15, false, 0};
    default:
      break;
  }
  OUTRIDER_CHECK(false, "no encoder for {}", name_of(type));
}

}  // namespace

std::vector<std::byte> gguf_image(const GgufContents& contents) {
  Image image;
  image.put_bytes(std::as_bytes(std::span("GGUF", 4)));
  image.put<std::uint32_t>(3);
  image.put<std::uint64_t>(contents.tensors.size());
  image.put<std::uint64_t>(contents.metadata.size());
  for (const auto& [key, value] : contents.metadata) {
    image.put_string(key);
    std::visit(PutValue{image}, value);
  }
  std::uint64_t offset = 0;
  for (const GgufWriteTensor& tensor : contents.tensors) {
    OUTRIDER_CHECK(tensor.data.size() == expected_bytes(tensor), "{}: {} bytes", tensor.name, tensor.data.size());
    image.put_string(tensor.name);
    image.put(static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::int64_t dim : tensor.dims) image.put(static_cast<std::uint64_t>(dim));
    image.put(static_cast<std::uint32_t>(tensor.type));
    image.put(offset);
    offset += (tensor.data.size() + kAlignment - 1) / kAlignment * kAlignment;
  }
  for (const GgufWriteTensor& tensor : contents.tensors) {
    image.align();
    image.put_bytes(tensor.data);
  }
  image.align();
  return image.take();
}

void write_gguf(const std::filesystem::path& target, const GgufContents& contents) {
  const std::vector<std::byte> image = gguf_image(contents);
  write_file_whole(target, {reinterpret_cast<const char*>(image.data()), image.size()});
}

std::vector<std::byte> gguf_blocks(GgufType type, std::span<const std::uint8_t> codes, std::span<const float> d,
                                   std::span<const float> m) {
  const Shape shape = shape_of(type);
  OUTRIDER_CHECK(codes.size() == 32 * d.size() && (!shape.has_minimum || m.size() == d.size()));
  std::vector<std::byte> out;
  for (std::size_t b = 0; b < d.size(); ++b) {
    const auto block = codes.subspan(32 * b, 32);
    if (type == GgufType::MXFP4)
      out.push_back(std::isfinite(d[b]) ? static_cast<std::byte>(std::ilogb(d[b]) + 127) : std::byte{255});
    else
      put_f16(out, d[b]);
    if (shape.has_minimum) put_f16(out, m[b]);
    if (shape.levels == 31) {
      std::uint32_t high = 0;
      for (int j = 0; j < 32; ++j) high |= static_cast<std::uint32_t>(block[j] >> 4 & 1) << j;
      out.resize(out.size() + 4);
      std::memcpy(out.data() + out.size() - 4, &high, 4);
    }
    if (shape.levels == 255)
      for (const std::uint8_t code : block) out.push_back(static_cast<std::byte>(code ^ 0x80));
    else
      for (int j = 0; j < 16; ++j) out.push_back(static_cast<std::byte>((block[j] & 15) | (block[16 + j] & 15) << 4));
  }
  return out;
}

namespace {

std::vector<std::byte> encode_mxfp4(std::span<const float> values) {
  std::vector<std::uint8_t> codes(values.size());
  std::vector<float> d;
  for (std::size_t b = 0; b < values.size() / 32; ++b) {
    float largest = 0x1p-100f;
    for (const float value : values.subspan(32 * b, 32)) largest = std::max(largest, std::fabs(value));
    d.push_back(std::ldexp(1.0f, std::ilogb(largest) - 1));
    for (std::size_t j = 32 * b; j < 32 * b + 32; ++j) {
      const auto distance = [&](std::uint8_t code) {
        return std::fabs(static_cast<float>(kE2m1Doubled[code]) * d.back() * 0.5f - values[j]);
      };
      for (std::uint8_t code = 1; code < 16; ++code)
        if (distance(code) < distance(codes[j])) codes[j] = code;
    }
  }
  return gguf_blocks(GgufType::MXFP4, codes, d, {});
}

}  // namespace

std::vector<std::byte> gguf_encode(GgufType type, std::span<const float> values) {
  std::vector<std::byte> out;
  if (type == GgufType::F32 || type == GgufType::F16 || type == GgufType::BF16) {
    const FloatType to = type == GgufType::F32   ? FloatType::f32
                         : type == GgufType::F16 ? FloatType::f16
                                                 : FloatType::bf16;
    out.resize(values.size() * size_of(to));
    for (std::size_t i = 0; i < values.size(); ++i) store_float(out.data() + i * size_of(to), to, values[i]);
    return out;
  }
  if (type == GgufType::MXFP4) return encode_mxfp4(values);
  const Shape shape = shape_of(type);
  std::vector<std::uint8_t> codes(values.size());
  std::vector<float> d, m;
  for (std::size_t b = 0; b < values.size() / 32; ++b) {
    const auto block = values.subspan(32 * b, 32);
    const auto [low, high] = std::minmax_element(block.begin(), block.end());
    const float range = shape.has_minimum ? *high - *low : std::max(std::fabs(*low), std::fabs(*high));
    const float steps = shape.has_minimum ? static_cast<float>(shape.levels) : shape.zero - 1;
    d.push_back(f32_from_f16(f16_from_f32(range / steps)));
    m.push_back(shape.has_minimum ? f32_from_f16(f16_from_f32(*low)) : 0.0f);
    const float inverse = d.back() == 0.0f ? 0.0f : 1.0f / d.back();
    for (int j = 0; j < 32; ++j) {
      const float code = std::rint((block[j] - m.back()) * inverse) + shape.zero;
      codes[32 * b + j] = static_cast<std::uint8_t>(std::clamp(code, 0.0f, static_cast<float>(shape.levels)));
    }
  }
  return gguf_blocks(type, codes, d, m);
}

}  // namespace outrider
