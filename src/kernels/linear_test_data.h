// Data for the tests of the Linear kernels: a packer written straight from numerics.md section 3 (independent of the
// one in weights/), a fixed generator, and the tables of this machine. No files: the test program travels alone.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "kernels/kernel_table.h"

namespace outrider::linear_test {

// A fixed sequence (splitmix64), the same on every machine and standard library. One draw per statement: the order of
// evaluation inside an expression differs between compilers.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(next() % limit); }
  // In [-1, 1), an exact multiple of 2^-23.
  float signed_unit() { return std::ldexp(static_cast<float>(below(1U << 24)), -23) - 1.0F; }

 private:
  std::uint64_t state_;
};

inline std::uint64_t fnv1a(const void* data, std::size_t bytes, std::uint64_t hash = 0xcbf29ce484222325U) {
  for (std::size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3U;
  }
  return hash;
}

// A stored scale, bias or dense value: its bits and what they mean, found without the code under test.
struct Stored {
  std::uint32_t bits = 0;
  float value = 0.0F;
};

inline Stored stored_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return {bits, static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude)};
}

// A value near `like` that the type holds exactly.
inline Stored stored(FloatType type, float like) {
  const auto bits = std::bit_cast<std::uint32_t>(like);
  if (type == FloatType::f32) return {bits, like};
  if (type == FloatType::bf16) return {bits >> 16, std::bit_cast<float>(bits & 0xffff0000U)};
  if (like == 0.0F) return stored_f16(static_cast<std::uint16_t>(bits >> 16 & 0x8000));
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(like), &exponent);  // [1/2, 1)
  const auto sign = static_cast<std::uint16_t>(std::signbit(like) ? 0x8000 : 0);
  if (exponent < -13) return stored_f16(static_cast<std::uint16_t>(sign | int(std::ldexp(fraction, exponent + 24))));
  const int mantissa = static_cast<int>(std::ldexp(fraction, 11)) - 1024;
  return stored_f16(static_cast<std::uint16_t>(sign | (exponent + 14) << 10 | mantissa));
}

inline void put(std::byte* at, FloatType type, const Stored& value) {
  std::memcpy(at, &value.bits, size_of(type));  // little-endian: the low bytes of the bits
}

// A matrix as the text describes it, and its packed form.
struct TestMatrix {
  PackedMatrix packed;
  std::vector<std::int16_t> codes;  // coded: [n][k], the integers of the products
  std::vector<float> scales;        // coded: [n][k/G]
  std::vector<float> biases;        // coded: [n][k/G]
  std::vector<float> values;        // dense: [n][k]
  AlignedBuffer bytes;
};

// Position of a panel row's block, counted from the formula and not by PackedMatrix::offset.
inline std::size_t block_index(std::int64_t n, std::int64_t depth, std::int64_t d, std::int64_t row) {
  const std::int64_t strip = row / 96;
  const std::int64_t panels_before = strip * 6;
  const std::int64_t panels_here = std::min<std::int64_t>(6, (n + 15) / 16 - panels_before);
  return static_cast<std::size_t>(panels_before * depth + d * panels_here + row % 96 / 16);
}

// Puts `code` of `bits` bits where code `i` of panel row `row` lies in words of that width.
inline void put_code(std::byte* words, int bits, std::int64_t row, int i, std::uint32_t code) {
  const int per_word = 32 / bits, pair = i % per_word / 2, e = i % 2;
  std::byte* at = words + static_cast<std::size_t>(i / per_word) * 64 + (row % 16) * 4;
  std::uint32_t word;
  std::memcpy(&word, at, 4);
  word |= code << (bits * pair + 16 * e);
  std::memcpy(at, &word, 4);
}

inline TestMatrix affine_matrix(std::int64_t n, std::int64_t k, int bits, int group, FloatType type, Random& random) {
  TestMatrix m;
  const std::int64_t groups = k / group;
  const std::size_t type_bytes = size_of(type);
  const std::size_t block_bytes = 32 * type_bytes + static_cast<std::size_t>(group) * bits / 32 * 64;
  // 3, 5 and 6 bits are a plane of 2, 4 and 4 bits and one of the rest behind it.
  const int low = bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
  m.bytes = AlignedBuffer(static_cast<std::size_t>((n + 15) / 16 * groups) * block_bytes, MemoryPart::scratch, 4096);
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t g = 0; g < groups; ++g) {
      std::byte* block = m.bytes.data() + block_index(n, groups, g, row) * block_bytes;
      const float sign = random.below(8) == 0 ? -1.0F : 1.0F;
      const Stored scale = stored(type, sign * std::ldexp(random.signed_unit() + 2.0F, -7));
      const Stored bias = stored(type, std::ldexp(random.signed_unit(), -4));
      put(block + (row % 16) * type_bytes, type, scale);
      put(block + (16 + row % 16) * type_bytes, type, bias);
      m.scales.push_back(scale.value);
      m.biases.push_back(bias.value);
      std::byte* words = block + 32 * type_bytes;
      for (int i = 0; i < group; ++i) {
        const std::uint32_t code = random.below(64) == 0 ? (1U << bits) - 1 : random.below(1U << bits);
        m.codes.push_back(static_cast<std::int16_t>(code));
        put_code(words, low, row, i, code & ((1U << low) - 1));
        if (low != bits)
          put_code(words + static_cast<std::size_t>(group) * low / 32 * 64, bits - low, row, i, code >> low);
      }
    }
  }
  m.packed = {PackedKind::affine, type, bits, group, n, k, m.bytes.data()};
  return m;
}

// mxfp4 (group 32) and nvfp4 (16) in their packed form: `codes` are twice the e2m1 values, the biases 0.
inline TestMatrix e2m1_matrix(std::int64_t n, std::int64_t k, int group, Random& random) {
  constexpr std::int16_t kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
  TestMatrix m;
  const std::int64_t groups = k / group;
  const std::size_t block_bytes = 64 + static_cast<std::size_t>(group) / 8 * 64;
  m.bytes = AlignedBuffer(static_cast<std::size_t>((n + 15) / 16 * groups) * block_bytes, MemoryPart::scratch, 4096);
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t g = 0; g < groups; ++g) {
      std::byte* block = m.bytes.data() + block_index(n, groups, g, row) * block_bytes;
      // mxfp4 scales are powers of two, down to subnormal ones; nvfp4 ones are any f32 (and may be negative).
      const float scale = group == 32
                              ? std::ldexp(1.0F, random.below(16) == 0 ? -128 : -static_cast<int>(random.below(12)))
                              : std::ldexp(random.signed_unit(), -6);
      put(block + (row % 16) * 4, FloatType::f32, {std::bit_cast<std::uint32_t>(scale), scale});
      m.scales.push_back(scale);
      m.biases.push_back(0);
      for (int i = 0; i < group; ++i) {
        const std::uint32_t code = random.below(16);
        m.codes.push_back(static_cast<std::int16_t>(code >= 8 ? -kTwice[code & 7] : kTwice[code]));
        put_code(block + 64, 4, row, i, code);
      }
    }
  }
  m.packed = {PackedKind::e2m1, FloatType::f32, 4, group, n, k, m.bytes.data()};
  return m;
}

inline TestMatrix dense_matrix(std::int64_t n, std::int64_t k, FloatType type, Random& random) {
  TestMatrix m;
  const std::size_t type_bytes = size_of(type);
  m.bytes = AlignedBuffer(static_cast<std::size_t>((n + 15) / 16 * k) * 16 * type_bytes, MemoryPart::scratch, 4096);
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t i = 0; i < k; ++i) {
      // Now and then tiny: a subnormal of f16.
      const int exponent = random.below(32) == 0 ? -16 : -2;
      const Stored value = stored(type, std::ldexp(random.signed_unit(), exponent));
      put(m.bytes.data() + block_index(n, k, i, row) * 16 * type_bytes + (row % 16) * type_bytes, type, value);
      m.values.push_back(value.value);
    }
  }
  m.packed = {PackedKind::dense, type, 0, 0, n, k, m.bytes.data()};
  return m;
}

// Coded rows with their buffers.
struct TestCodes {
  TestCodes(std::int64_t rows, std::int64_t k, int group)
      : codes(static_cast<std::size_t>(rows * k) * 2, MemoryPart::scratch),
        scales(static_cast<std::size_t>(rows * (k / group)) * 8, MemoryPart::scratch),
        faults(static_cast<std::size_t>(rows)) {
    coded = {codes.as<std::int16_t>().data(), scales.as<float>().data(), rows};
  }
  AlignedBuffer codes, scales;
  std::vector<std::uint32_t> faults;
  CodedRows coded;
};

// Rows of every kind: plain, all equal, zero, tiny, huge, around the threshold, halves, faulty. x: [rows][width].
inline std::vector<float> awkward_rows(std::int64_t rows, std::int64_t width, Random& random) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(static_cast<std::size_t>(rows * width));
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = x.data() + r * width;
    const int kind = static_cast<int>(r % 12);
    for (std::int64_t i = 0; i < width; ++i) {
      const int exponent = static_cast<int>(random.below(12)) - 6;
      row[i] = std::ldexp(random.signed_unit(), exponent);
      if (kind == 1) row[i] = 0.3F;
      if (kind == 2) row[i] = i % 2 == 0 ? 0.0F : -0.0F;
      if (kind == 3) row[i] *= 0x1p-120F;
      if (kind == 4) row[i] = random.signed_unit() * 3.4e38F;
      if (kind == 5) row[i] *= 0x1p-101F;
      if (kind == 6) row[i] = static_cast<float>(static_cast<int>(random.below(2000)) - 1000) + 0.5F;
      if (kind == 11) row[i] *= 0x1p-140F;
    }
    if (kind == 6) row[0] = -32767.0F;  // the factor is 1: the halves stay halves
    if (kind == 7) row[random.below(static_cast<std::uint32_t>(width))] = inf;
    if (kind == 8) row[random.below(static_cast<std::uint32_t>(width))] = -nan;
    if (kind == 9) row[width - 1] = -inf;
    if (kind == 10) row[random.below(static_cast<std::uint32_t>(width))] = -3000.0F;
  }
  return x;
}

// The vector tables of this build; the test skips, and says so, where the processor lacks one.
class VectorTable : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    table_ = kernel_table(GetParam());
    if (table_ == nullptr) {
      const std::string name(name_of(GetParam()));
      std::fprintf(stderr, "NOT TESTED: this processor or build has no %s\n", name.c_str());
      GTEST_SKIP() << "no " << name << " here";
    }
  }
  const KernelTable& portable() const { return *kernel_table(Isa::portable); }
  const KernelTable& table() const { return *table_; }

 private:
  const KernelTable* table_ = nullptr;
};

inline const auto kVectorIsas = testing::Values(Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::amx);
inline std::string isa_name(const testing::TestParamInfo<Isa>& info) { return std::string(name_of(info.param)); }

// Output rows with a margin around and between them, so that a write beyond N or outside the asked rows shows.
struct TestOutput {
  static constexpr std::uint32_t kUntouched = 0x7fa5a5a5;  // a NaN no kernel makes
  TestOutput(std::int64_t rows, std::int64_t n)
      : ld(n + 7), values(static_cast<std::size_t>(rows * ld + 32), std::bit_cast<float>(kUntouched)) {}
  float* data() { return values.data() + 16; }
  const float* row(std::int64_t r) const { return values.data() + 16 + r * ld; }
  bool operator==(const TestOutput& other) const {
    return values.size() == other.values.size() &&
           std::memcmp(values.data(), other.values.data(), values.size() * sizeof(float)) == 0;
  }
  std::int64_t ld;
  std::vector<float> values;
};

inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

}  // namespace outrider::linear_test
