// The constants of exp32, shared by the scalar definition (math.cpp) and the vector kernels, which must give its bytes.
//
//   t = fma(x, log2(e), kRound); n = t - kRound: x/ln 2 rounded half to even, and its integer in the low bits of t.
//   r = fma(n, -ln2_low, fma(n, -ln2_high, x)): the first product is exact, |r| <= 0.3467.
//   p = 1 + r(1 + r(c2 + r(c3 + r(c4 + r(c5 + r c6))))), one fma per step; the bits of p plus (bits of t << 23) are
//   p*2^n, which is a normal number for every x in [kLowest, kHighest].
#pragma once

namespace outrider {

struct Exp32 {
  static constexpr float kLog2E = 0x1.715476p0F;
  static constexpr float kRound = 0x1.8p23F;     // the spacing of floats here is 1
  static constexpr float kLn2High = 0x1.63p-1F;  // 9 bits, so that n*kLn2High is exact
  static constexpr float kLn2Low = -0x1.bd0106p-13F;
  // Minimax on |r| <= 0.3467 for the relative error of exp, c0 = c1 = 1 fixed; 0.06 ulp before rounding.
  static constexpr float kC2 = 0x1.fffffcp-2F;
  static constexpr float kC3 = 0x1.555492p-3F;
  static constexpr float kC4 = 0x1.5558f2p-5F;
  static constexpr float kC5 = 0x1.123a2p-7F;
  static constexpr float kC6 = 0x1.6a23d6p-10F;
  static constexpr float kLowest = -87.3F;          // below: +0, so that no result is subnormal
  static constexpr float kHighest = 0x1.62e42ep6F;  // the largest x whose exp is finite; above: inf
};

}  // namespace outrider
