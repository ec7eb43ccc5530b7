// IEEE binary16 <-> binary32 on integers: the definition that the conversions of the processors must equal.
#pragma once

#include <bit>
#include <cstdint>

namespace outrider {

constexpr float f32_from_f16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  if (magnitude >= 0x7c00U) {  // inf; a NaN becomes quiet and keeps its payload
    const std::uint32_t quiet = magnitude > 0x7c00U ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (magnitude & 0x3ffU) << 13);
  }
  if (magnitude >= 0x400U) return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24F;  // zero and subnormal, exact
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

// Rounded half to even, subnormal results included; 65520 and above become inf.
constexpr std::uint16_t f16_from_f32(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U | (magnitude >> 13 & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {  // 65520
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14: normal; a carry of the rounding runs into the exponent, as it should
    half = (magnitude - (112U << 23) + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
  } else {
    // Adding 1/2 rounds to a multiple of 2^-24, half to even, and leaves that multiple in the low bits.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace outrider
