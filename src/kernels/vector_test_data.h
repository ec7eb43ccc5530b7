// Data for the tests of the vector kernels. No files: the test program travels alone to machines with other processors.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/half.h"
#include "kernels/linear_test_data.h"

namespace outrider::vector_test {

using linear_test::fnv1a;
using linear_test::isa_name;
using linear_test::kVectorIsas;
using linear_test::Random;
using linear_test::VectorTable;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline const KernelTable& portable_table_under_test() { return *kernel_table(Isa::portable); }

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// Equal bytes; two NaN are equal whatever they carry (numerics.md section 8: no promise about faulty rows).
inline testing::AssertionResult same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " against " << b.size() << " values";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (bits(a[i]) == bits(b[i]) || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    return testing::AssertionFailure() << "value " << i << " of " << a.size() << ": " << a[i] << " (" << std::hex
                                       << bits(a[i]) << ") against " << b[i] << " (" << bits(b[i]) << ")";
  }
  return testing::AssertionSuccess();
}

inline std::uint64_t hash_of(const std::vector<float>& values) {
  return fnv1a(values.data(), values.size() * sizeof(float));
}

// About normal: the sum of four uniform values, drawn one after the other so that every compiler draws the same.
inline float bell(Random& random) {
  float sum = 0.0F;
  for (int i = 0; i < 4; ++i) sum += random.signed_unit();
  return sum;
}

inline std::vector<float> bells(std::size_t n, Random& random, float factor = 1.0F) {
  std::vector<float> x(n);
  for (float& value : x) value = bell(random) * factor;
  return x;
}

// What a kernel may meet; `faulty` holds NaN or infinities.
enum class Kind { plain, equal, zeros, tiny, subnormal, huge, mixed, with_infinity, with_nan, all_nan };
inline constexpr Kind kKinds[] = {Kind::plain, Kind::equal, Kind::zeros,         Kind::tiny,     Kind::subnormal,
                                  Kind::huge,  Kind::mixed, Kind::with_infinity, Kind::with_nan, Kind::all_nan};

inline std::vector<float> vector_of(Kind kind, std::size_t n, Random& random) {
  std::vector<float> x = bells(n, random);
  for (std::size_t i = 0; i < n; ++i) {
    switch (kind) {
      case Kind::plain:
        break;
      case Kind::equal:
        x[i] = 0.3F;
        break;
      case Kind::zeros:
        x[i] = random.below(2) == 0 ? 0.0F : -0.0F;
        break;
      case Kind::tiny:
        x[i] *= 0x1p-120F;
        break;
      case Kind::subnormal:
        x[i] *= 0x1p-140F;
        break;
      case Kind::huge:
        x[i] *= 0x1p125F;
        break;
      case Kind::mixed:
        x[i] = std::ldexp(x[i], static_cast<int>(random.below(250)) - 125);
        break;
      case Kind::all_nan:
        x[i] = kNaN;
        break;
      case Kind::with_infinity:
      case Kind::with_nan:
        break;
    }
  }
  if (n == 0) return x;
  const std::uint32_t at = random.below(static_cast<std::uint32_t>(n));
  if (kind == Kind::with_infinity) x[at] = random.below(2) == 0 ? kInfinity : -kInfinity;
  if (kind == Kind::with_nan) x[at] = kNaN;
  return x;
}

// Element `index` of a KV block.
inline float element(const std::vector<std::byte>& block, FloatType type, std::size_t index) {
  if (type == FloatType::f32) {
    float value;
    std::memcpy(&value, block.data() + index * 4, 4);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, block.data() + index * 2, 2);
  return f32_from_f16(half);
}

// n values that start `shift` floats after an aligned address and have a margin that must stay as it is.
class Unaligned {
 public:
  Unaligned(const std::vector<float>& values, std::size_t shift)
      : n_(values.size()), shift_(shift), values_(shift, kMargin) {
    values_.insert(values_.end(), values.begin(), values.end());
    values_.insert(values_.end(), 33, kMargin);
  }
  float* data() { return values_.data() + shift_; }
  std::vector<float> values() const { return {values_.begin() + shift_, values_.begin() + shift_ + n_}; }
  bool margin_untouched() const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if ((i < shift_ || i >= shift_ + n_) && bits(values_[i]) != bits(kMargin)) return false;
    }
    return true;
  }

 private:
  static constexpr float kMargin = -1234.5F;
  std::size_t n_;
  std::size_t shift_;
  std::vector<float> values_;
};

// Lengths around the widths of registers and reductions.
inline constexpr std::size_t kLengths[] = {1,  2,  3,  7,  8,  9,  15, 16,  17,  23,  24,  25,  31,
                                           32, 33, 47, 48, 63, 64, 65, 100, 128, 255, 256, 576, 1000};

}  // namespace outrider::vector_test
