// The specification of the Linear kernels: numerics.md sections 2 and 3 in plain scalar code.
#include <bit>
#include <cmath>

#include "kernels/cpu/linear_kernels.h"
#include "kernels/half.h"

namespace outrider {
namespace {

constexpr std::uint32_t kInfBits = 0x7f800000;
constexpr std::uint32_t kFaultScaleBits = 0x7fc00000;   // the s of a group with an inf or NaN
constexpr std::uint32_t kTinyBits = (127 - 100) << 23;  // 2^-100: below it a group is coded as zeros
constexpr float kLargestCode = 32767.0F;

template <typename T>
T load_as(const std::byte* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

float value_at(const std::byte* base, std::int64_t index, FloatType type) {
  const std::byte* p = base + static_cast<std::size_t>(index) * size_of(type);
  switch (type) {
    case FloatType::f32:
      return load_as<float>(p);
    case FloatType::f16:
      return f32_from_f16(load_as<std::uint16_t>(p));
    case FloatType::bf16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(load_as<std::uint16_t>(p)) << 16);
  }
  return 0.0F;
}

// One panel's block of one group.
struct Block {
  const PackedMatrix& w;
  const std::byte* base;

  float scale(int lane) const { return value_at(base, lane, w.scale_type); }
  float bias(int lane) const {
    return w.kind == PackedKind::affine ? value_at(base, PackedMatrix::kPanelRows + lane, w.scale_type) : 0.0F;
  }
  // The integer that stands for code `index` (0..group) of a row.
  std::int32_t code(int lane, int index) const {
    const Planes planes = planes_of(w.bits);
    const std::byte* words = base + w.head_bytes();
    std::uint32_t code = plane(words, planes.low, lane, index);
    if (planes.high != 0) {
      const std::byte* high = words + w.group * planes.low / 32 * PackedMatrix::kPanelRows * 4;
      code |= plane(high, planes.high, lane, index) << planes.low;
    }
    return w.kind == PackedKind::e2m1 ? kE2m1Doubled[code] : static_cast<std::int32_t>(code);
  }

 private:
  // Word index/(32/b), bits b*p + 16e with index%(32/b) = 2p+e.
  static std::uint32_t plane(const std::byte* words, int bits, int lane, int index) {
    const int per_word = 32 / bits;
    const int within = index % per_word;
    const int shift = bits * (within / 2) + 16 * (within % 2);
    const auto word = load_as<std::uint32_t>(words + 4 * ((index / per_word) * PackedMatrix::kPanelRows + lane));
    return (word >> shift) & ((1U << bits) - 1);
  }
};

// Codes one group of one row; returns the fault bits.
std::uint32_t code_group(const float* x, int group, std::int16_t* codes, float* scale_and_sum) {
  std::uint32_t largest = 0;
  for (int i = 0; i < group; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffU;
    if (magnitude > largest) largest = magnitude;
  }
  if (largest >= kInfBits || largest < kTinyBits) {
    for (int i = 0; i < group; ++i) codes[i] = 0;
    scale_and_sum[0] = largest >= kInfBits ? std::bit_cast<float>(kFaultScaleBits) : 0.0F;
    scale_and_sum[1] = 0.0F;
    return largest >= kInfBits ? kFaultNonFinite : 0;
  }
  const auto a = std::bit_cast<float>(largest);
  const float factor = kLargestCode / a;  // rounded once; x/s would give other codes
  std::int32_t sum = 0;
  for (int i = 0; i < group; ++i) {
    codes[i] = static_cast<std::int16_t>(std::rint(x[i] * factor));
    sum += codes[i];
  }
  scale_and_sum[0] = a / kLargestCode;
  scale_and_sum[1] = static_cast<float>(sum);
  return 0;
}

void code_rows(const float* x, std::int64_t ldx, std::int64_t k, int group, Range rows, const CodedRows& out,
               std::uint32_t* faults) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t g = 0; g < k / group; ++g) {
      const std::int64_t at = g * out.rows + row;
      faults[row] |= code_group(x + row * ldx + g * group, group, out.codes + at * group, out.scales + at * 2);
    }
  }
}

float product_of(const PackedMatrix& w, std::int64_t output, const CodedRows& x, std::int64_t row) {
  const std::int64_t strip = output / PackedMatrix::kStripRows;
  const std::int64_t panel = output % PackedMatrix::kStripRows / PackedMatrix::kPanelRows;
  const int lane = static_cast<int>(output % PackedMatrix::kPanelRows);
  float t = 0.0F;
  for (std::int64_t g = 0; g < w.groups(); ++g) {
    const Block block{w, w.data + w.offset(strip, g, panel)};
    const std::int16_t* codes = x.codes + (g * x.rows + row) * w.group;
    const float* scale_and_sum = x.scales + (g * x.rows + row) * 2;
    std::int32_t sum = 0;
    for (int i = 0; i < w.group; ++i) sum += block.code(lane, i) * codes[i];
    const float product = static_cast<float>(sum);
    const float inner = w.kind == PackedKind::e2m1
                            ? block.scale(lane) * product
                            : std::fma(block.scale(lane), product, block.bias(lane) * scale_and_sum[1]);
    t = std::fma(scale_and_sum[0], inner, t);
  }
  return t;
}

float dense_product_of(const PackedMatrix& w, std::int64_t output, const float* x) {
  const std::int64_t strip = output / PackedMatrix::kStripRows;
  const std::int64_t panel = output % PackedMatrix::kStripRows / PackedMatrix::kPanelRows;
  const std::int64_t lane = output % PackedMatrix::kPanelRows;
  float t = 0.0F;
  for (std::int64_t i = 0; i < w.k; ++i) {
    t = std::fma(x[i], value_at(w.data + w.offset(strip, i, panel), lane, w.scale_type), t);
  }
  return t;
}

Range outputs_of(const PackedMatrix& w, Range strips) {
  const std::int64_t end = strips.end * PackedMatrix::kStripRows;
  return {strips.begin * PackedMatrix::kStripRows, end < w.n ? end : w.n};
}

void product(const PackedMatrix& w, Range strips, const CodedRows& x, Range rows, float* y, std::int64_t ldy) {
  const Range outputs = outputs_of(w, strips);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t o = outputs.begin; o < outputs.end; ++o) y[row * ldy + o] = product_of(w, o, x, row);
  }
}

void dense_product(const PackedMatrix& w, Range strips, const float* x, std::int64_t ldx, Range rows, float* y,
                   std::int64_t ldy) {
  const Range outputs = outputs_of(w, strips);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t o = outputs.begin; o < outputs.end; ++o) y[row * ldy + o] = dense_product_of(w, o, x + row * ldx);
  }
}

void unpack_row(const PackedMatrix& w, std::int64_t row, float* y) {
  const std::int64_t strip = row / PackedMatrix::kStripRows;
  const std::int64_t panel = row % PackedMatrix::kStripRows / PackedMatrix::kPanelRows;
  const int lane = static_cast<int>(row % PackedMatrix::kPanelRows);
  if (w.kind == PackedKind::dense) {
    for (std::int64_t i = 0; i < w.k; ++i) y[i] = value_at(w.data + w.offset(strip, i, panel), lane, w.scale_type);
    return;
  }
  for (std::int64_t g = 0; g < w.groups(); ++g) {
    const Block block{w, w.data + w.offset(strip, g, panel)};
    for (int i = 0; i < w.group; ++i) {
      const auto code = static_cast<float>(block.code(lane, i));
      y[g * w.group + i] =
          w.kind == PackedKind::e2m1 ? code * block.scale(lane) : std::fma(code, block.scale(lane), block.bias(lane));
    }
  }
}

}  // namespace

void fill_linear_kernels_portable(KernelTable& table) {
  table.code_rows = code_rows;
  table.product = product;
  table.dense_product = dense_product;
  table.unpack_row = unpack_row;
}

}  // namespace outrider
