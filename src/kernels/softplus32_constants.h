// The constants of softplus32, shared by the scalar definition (math.cpp) and the vector kernels.
//
//   y = exp32(x); u = 1 + y, low what this sum lost; u = m*2^k with m in [sqrt(1/2), sqrt(2)).
//   f = fma(low, 2^-k, m - 1); ln(1 + f) = f + t, t = fma(f^3, Q(f), -f^2/2), Q by one fma per step.
//   softplus = fma(k, ln2_high, f + fma(k, ln2_low, t)); ln 2 in the two parts of exp32.
#pragma once

#include <cstdint>

namespace outrider {

struct Softplus32 {
  static constexpr float kLinear = 20.0F;                    // above: softplus(x) = x (models.md 3.3)
  static constexpr std::int32_t kSqrtHalfBits = 0x3f3504f3;  // of the largest float below sqrt(1/2)
  static constexpr std::int32_t kOneBits = 0x3f800000;
  // Minimax on [sqrt(1/2) - 1, sqrt(2) - 1] for the relative error of ln(1 + f); 0.14 ulp before rounding.
  static constexpr float kQ[8] = {0x1.555554p-2F, -0x1.000228p-2F, 0x1.99a008p-3F, -0x1.547244p-3F,
                                  0x1.22da24p-3F, -0x1.0d8554p-3F, 0x1.055b4p-3F,  -0x1.38b4b2p-4F};
};

}  // namespace outrider
