// The 16 virtual lanes of numerics.md section 4, for the portable kernels.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace outrider {

inline constexpr std::int64_t kVirtualLanes = 16;
using VirtualLanes = std::array<float, kVirtualLanes>;

// The tree: acc_l += acc_{l+8}, then +4, +2, +1.
inline float reduce(VirtualLanes lanes) {
  for (std::size_t step = kVirtualLanes / 2; step > 0; step /= 2) {
    for (std::size_t l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  }
  return lanes[0];
}

inline float sum_of_squares(const float* x, std::int64_t n) {
  VirtualLanes lanes{};
  for (std::int64_t i = 0; i < n; ++i) {
    float& lane = lanes[static_cast<std::size_t>(i % kVirtualLanes)];
    lane = std::fma(x[i], x[i], lane);
  }
  return reduce(lanes);
}

// The factor of an rms norm.
inline float rms_factor(const float* x, std::int64_t width, float eps) {
  return 1.0F / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + eps);
}

}  // namespace outrider
