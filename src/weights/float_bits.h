// Conversions between f32 and the 16-bit and 8-bit floats of checkpoint files, by bits: no hardware, no libm.
// Narrowing rounds half to even, subnormals included; overflow gives infinity. Source: IEEE 754; models.md 1.8.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/packed_matrix.h"

namespace outrider {

inline float f32_from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  // Subnormal: an integer number of 2^-24.
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

inline std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline std::uint16_t f16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65536
  if (magnitude >= 0x38800000u) {  // normal f16; rounding up to 65536 carries into infinity, as it must
    const std::uint32_t rebased = magnitude - 0x38000000u;
    return static_cast<std::uint16_t>(sign | (rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13);
  }
  // Subnormal: adding 0.5 leaves units of 2^-24 in the mantissa, rounded half to even by the addition itself.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
}

// e4m3 (no infinities; 0x7f and 0xff are NaN) and e8m0 (2^(s-127); 255 is NaN) of the fp modes.
inline float f32_from_e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const auto mantissa = static_cast<float>(code & 7);
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? mantissa * 0x1p-9f : std::ldexp(1.0f + mantissa * 0.125f, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}
inline float f32_from_e8m0(std::uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

// One value of a float array that may lie at any address (models.md 1.4 rule 8).
inline float load_float(const std::byte* from, FloatType type) {
  if (type == FloatType::f32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return type == FloatType::f16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

// Rounds half to even into `type`.
inline void store_float(std::byte* to, FloatType type, float value) {
  if (type == FloatType::f32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = type == FloatType::f16 ? f16_from_f32(value) : bf16_from_f32(value);
  std::memcpy(to, &bits, sizeof bits);
}

inline const char* name_of(FloatType type) {
  return type == FloatType::f32 ? "f32" : type == FloatType::f16 ? "f16" : "bf16";
}

}  // namespace outrider
