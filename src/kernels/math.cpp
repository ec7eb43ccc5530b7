#include "kernels/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/exp32_constants.h"
#include "kernels/softplus32_constants.h"

namespace outrider {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// An unevaluated sum high + low, |low| <= half an ulp of high.
struct Pair {
  double high;
  double low;
};

// a + b exactly, for |a| >= |b| or a = 0.
Pair exact_sum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

double from_bits(std::uint64_t bits) { return std::bit_cast<double>(bits); }
double power_of_two(int n) { return from_bits(static_cast<std::uint64_t>(n + 1023) << 52); }  // -1022 <= n <= 1023

// p*2^n for p in [0.5, 2): one rounding, also where the result is subnormal.
double scaled(double p, int n) {
  if (n > 1023) return p * 0x1p1023 * power_of_two(n - 1023);
  if (n < -1000) return p * power_of_two(n + 128) * 0x1p-128;
  return p * power_of_two(n);
}

// ln 2 in two parts; the first has 40 bits, so that its product with an exponent is exact.
constexpr double kLn2High = 0x1.62e42fefa2p-1;
constexpr double kLn2Low = 0x1.9ef35793c7673p-41;

// exp(x + x_low) = 2^n * (1 + r + tail).
struct ExpParts {
  int n;
  double r;     // |r| <= 0.3467
  double tail;  // r^2/2 + r^3/6 + ... and what r lost by rounding
};

ExpParts exp_parts(double x, double x_low) {
  constexpr double kRound = 0x1.8p52;
  const double n = std::fma(x, 0x1.71547652b82fep0, kRound) - kRound;
  const double high = std::fma(n, -kLn2High, x);  // exact
  const double low = std::fma(n, kLn2Low, -x_low);
  const double r = high - low;
  const double lost = (high - r) - low;
  // The Taylor series: its remainder after r^13 is 4e-18.
  double q = 0x1.6124613a86d09p-33;
  q = std::fma(q, r, 0x1.1eed8eff8d898p-29);
  q = std::fma(q, r, 0x1.ae64567f544e4p-26);
  q = std::fma(q, r, 0x1.27e4fb7789f5cp-22);
  q = std::fma(q, r, 0x1.71de3a556c734p-19);
  q = std::fma(q, r, 0x1.a01a01a01a01ap-16);
  q = std::fma(q, r, 0x1.a01a01a01a01ap-13);
  q = std::fma(q, r, 0x1.6c16c16c16c17p-10);
  q = std::fma(q, r, 0x1.1111111111111p-7);
  q = std::fma(q, r, 0x1.5555555555555p-5);
  q = std::fma(q, r, 0x1.5555555555555p-3);
  q = std::fma(q, r, 0.5);
  return {static_cast<int>(n), r, std::fma(r * r, q, std::fma(lost, r, lost))};
}

double exp_of_pair(double x, double x_low) {
  if (x > 709.79) return kInfinity;
  if (x < -745.2) return 0.0;
  const ExpParts e = exp_parts(x, x_low);
  const Pair sum = exact_sum(1.0, e.r);
  return scaled(sum.high + (sum.low + e.tail), e.n);
}

// ln(x + x_low) for positive, finite, normal x, |x_low| <= half an ulp of x: k ln 2 + 2 atanh(s), s = (m-1)/(m+1),
// m in [sqrt(1/2), sqrt(2)). The error is below 2^-59 of the result.
Pair log_of_pair(double x, double x_low) {
  constexpr std::uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcd;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::int64_t exponent = static_cast<std::int64_t>(bits - kSqrtHalfBits) >> 52;
  const double m = from_bits(bits - (static_cast<std::uint64_t>(exponent) << 52));
  const auto k = static_cast<double>(exponent);
  // x_low != 0 comes from 1 + y, so x >= 2^-53 and the exponent below is in range.
  const double m_low = x_low == 0.0 ? 0.0 : x_low * 0.5 * power_of_two(static_cast<int>(1 - exponent));
  const Pair f = exact_sum(m - 1.0, m_low);
  const Pair sum = exact_sum(2.0, f.high);
  const double denominator_low = sum.low + f.low;
  const double s = f.high / sum.high;
  const double s_low = (std::fma(-s, sum.high, f.high) + f.low - s * denominator_low) / sum.high;
  const double z = s * s;
  // 2/(2i+1); z <= 0.0295, so the first left out adds 2e-20.
  double q = 0x1.642c8590b2164p-4;
  q = std::fma(q, z, 0x1.8618618618618p-4);
  q = std::fma(q, z, 0x1.af286bca1af28p-4);
  q = std::fma(q, z, 0x1.e1e1e1e1e1e1ep-4);
  q = std::fma(q, z, 0x1.1111111111111p-3);
  q = std::fma(q, z, 0x1.3b13b13b13b14p-3);
  q = std::fma(q, z, 0x1.745d1745d1746p-3);
  q = std::fma(q, z, 0x1.c71c71c71c71cp-3);
  q = std::fma(q, z, 0x1.2492492492492p-2);
  q = std::fma(q, z, 0x1.999999999999ap-2);
  q = std::fma(q, z, 0x1.5555555555555p-1);
  const Pair high = exact_sum(k * kLn2High, 2.0 * s);
  const double low = high.low + (s * z * q + std::fma(k, kLn2Low, 2.0 * s_low));
  return exact_sum(high.high, low);
}

// sin and cos of r + low for |r| <= 0.79: Taylor series, remainders below 3e-20.
Pair sincos_of_pair(double r, double low) {
  const double z = r * r;
  double s = 0x1.952c77030ad4ap-49;
  s = std::fma(s, z, -0x1.ae7f3e733b81fp-41);
  s = std::fma(s, z, 0x1.6124613a86d09p-33);
  s = std::fma(s, z, -0x1.ae64567f544e4p-26);
  s = std::fma(s, z, 0x1.71de3a556c734p-19);
  s = std::fma(s, z, -0x1.a01a01a01a01ap-13);
  s = std::fma(s, z, 0x1.1111111111111p-7);
  s = std::fma(s, z, -0x1.5555555555555p-3);
  const double sine = r + std::fma(r * z, s, std::fma(-0.5 * z, low, low));
  double c = -0x1.6827863b97d97p-53;
  c = std::fma(c, z, 0x1.ae7f3e733b81fp-45);
  c = std::fma(c, z, -0x1.93974a8c07c9dp-37);
  c = std::fma(c, z, 0x1.1eed8eff8d898p-29);
  c = std::fma(c, z, -0x1.27e4fb7789f5cp-22);
  c = std::fma(c, z, 0x1.a01a01a01a01ap-16);
  c = std::fma(c, z, -0x1.6c16c16c16c17p-10);
  c = std::fma(c, z, 0x1.5555555555555p-5);
  const Pair head = exact_sum(1.0, -0.5 * z);
  // r*r was rounded; half of what it lost belongs to the cosine as well.
  const double lost = 0.5 * std::fma(r, r, -z);
  const double cosine = head.high + (head.low + (std::fma(z * z, c, -r * low) - lost));
  return {sine, cosine};
}

}  // namespace

// Error below 0.9 ulp (every float tried) where the result is not flushed.
float exp32(float x) {
  if (x != x) return x;
  if (x < Exp32::kLowest) return 0.0F;
  if (x > Exp32::kHighest) return std::numeric_limits<float>::infinity();
  const float t = std::fma(x, Exp32::kLog2E, Exp32::kRound);
  const float n = t - Exp32::kRound;
  const float r = std::fma(n, -Exp32::kLn2Low, std::fma(n, -Exp32::kLn2High, x));
  float p = std::fma(Exp32::kC6, r, Exp32::kC5);
  p = std::fma(p, r, Exp32::kC4);
  p = std::fma(p, r, Exp32::kC3);
  p = std::fma(p, r, Exp32::kC2);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(t) << 23));
}

// Errors below 3 ulp, from exp32, one addition and one division.
float silu32(float x) { return x / (1.0F + exp32(-x)); }
float sigmoid32(float x) { return 1.0F / (1.0F + exp32(-x)); }

// Error below 2 ulp where exp32 is not flushed: that of exp32, then below 1.1 ulp of the logarithm.
float softplus32(float x) {
  if (x > Softplus32::kLinear) return x;
  const float y = exp32(x);
  const float u = 1.0F + y;
  const float from_y = u - 1.0F;
  const float low = (y - from_y) + (1.0F - (u - from_y));  // either term may be the larger one
  const auto bits = std::bit_cast<std::int32_t>(u);
  const std::int32_t k = (bits - Softplus32::kSqrtHalfBits) >> 23;
  const auto shift = static_cast<std::int32_t>(static_cast<std::uint32_t>(k) << 23);
  const auto m = std::bit_cast<float>(bits - shift);
  const float f = std::fma(low, std::bit_cast<float>(Softplus32::kOneBits - shift), m - 1.0F);
  float q = Softplus32::kQ[7];
  for (int i = 6; i >= 0; --i) q = std::fma(q, f, Softplus32::kQ[i]);
  const float square = f * f;
  const float t = std::fma(square * f, q, -0.5F * square);
  const auto exponent = static_cast<float>(k);
  return std::fma(exponent, Exp32::kLn2High, f + std::fma(exponent, Exp32::kLn2Low, t));
}

// Error below 0.65 ulp, below 0.8 where the result is subnormal.
double exp64(double x) {
  if (x != x) return x;
  return exp_of_pair(x, 0.0);
}

// Error below 0.55 ulp. -inf for 0, NaN for x < 0.
double log64(double x) {
  if (x != x || x == kInfinity) return x;
  if (x == 0.0) return -kInfinity;
  if (x < 0.0) return kNaN;
  if (x >= 0x1p-1022) return log_of_pair(x, 0.0).high;
  const Pair log = log_of_pair(x * 0x1p54, 0.0);  // subnormal
  return log.high + (log.low - 54.0 * 0x1.62e42fefa39efp-1);
}

// Error below 0.55 ulp. -inf for -1, NaN for x < -1.
double log1p64(double x) {
  if (x != x || x == kInfinity) return x;
  if (x == -1.0) return -kInfinity;
  if (x < -1.0) return kNaN;
  if (std::fabs(x) < 0x1p-54) return x;  // x - x^2/2 rounds to x; keeps -0
  const Pair sum = x < 1.0 ? exact_sum(1.0, x) : exact_sum(x, 1.0);
  return log_of_pair(sum.high, sum.low).high;
}

// Error below 0.9 ulp.
double expm164(double x) {
  if (x != x) return x;
  if (std::fabs(x) < 0x1p-54) return x;
  if (x > 709.79) return kInfinity;
  if (x < -40.0) return -1.0;
  const ExpParts e = exp_parts(x, 0.0);
  if (e.n == 0) return e.r + e.tail;
  if (e.n > 53) {
    const Pair sum = exact_sum(1.0, e.r);
    return scaled(sum.high + (sum.low + (e.tail - (e.n < 1000 ? power_of_two(-e.n) : 0.0))), e.n);
  }
  const double scale = power_of_two(e.n);
  const double head = scale - 1.0;  // exact for n >= -53, and within 2^-54 of -1 below
  const double r = scale * e.r;
  const Pair sum = std::fabs(head) >= std::fabs(r) ? exact_sum(head, r) : exact_sum(r, head);
  return sum.high + (sum.low + scale * e.tail);
}

// Errors below 0.8 ulp for |x| <= 2^31 (tested there), by an exact reduction: x - n*(pi/2) with three parts of pi/2,
// the first product and difference exact. NaN beyond 2^50, where n could be wrong by one; no position comes near.
void sincos64(double x, double* sin, double* cos) {
  if (!(std::fabs(x) <= 0x1p50)) {
    *sin = *cos = kNaN;
    return;
  }
  constexpr double kHalfPi1 = 0x1.921fb54442d18p0;
  constexpr double kHalfPi2 = 0x1.1a62633145c07p-54;
  constexpr double kHalfPi3 = -0x1.f1976b7ed8fbcp-110;
  constexpr double kRound = 0x1.8p52;
  const double n = std::fma(x, 0x1.45f306dc9c883p-1, kRound) - kRound;
  const double exact = std::fma(-n, kHalfPi1, x);  // a multiple of 2^-52 (2^-53) below 1
  const double product = n * kHalfPi2;
  const double product_low = std::fma(n, kHalfPi2, -product);
  const double r = exact - product;
  const double back = exact - r;  // two-sum: either term may be the larger one
  const double lost = (exact - (r + back)) + (back - product);
  const double low = lost - std::fma(n, kHalfPi3, product_low);
  const Pair reduced = exact_sum(r, low);
  const Pair sc = sincos_of_pair(reduced.high, reduced.low);
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0:
      *sin = sc.high, *cos = sc.low;
      break;
    case 1:
      *sin = sc.low, *cos = -sc.high;
      break;
    case 2:
      *sin = -sc.high, *cos = -sc.low;
      break;
    default:
      *sin = -sc.low, *cos = sc.high;
      break;
  }
}

double sin64(double x) {
  double sin, cos;
  sincos64(x, &sin, &cos);
  return sin;
}

double cos64(double x) {
  double sin, cos;
  sincos64(x, &sin, &cos);
  return cos;
}

// Error below 0.65 + 0.01*|y ln x| ulp: 0.85 ulp for every inverse frequency (|y ln x| <= 20). NaN unless x > 0.
double pow64(double x, double y) {
  if (!(x > 0.0) || y != y) return kNaN;
  if (y == 0.0) return 1.0;
  Pair log = {kInfinity, 0.0};
  if (x < 0x1p-1022) {
    log = log_of_pair(x * 0x1p54, 0.0);
    log = exact_sum(log.high - 54.0 * kLn2High, log.low - 54.0 * kLn2Low);
  } else if (x != kInfinity) {
    log = log_of_pair(x, 0.0);
  }
  const double product = y * log.high;
  if (!(std::fabs(product) < 800.0)) return product > 0.0 ? kInfinity : product < 0.0 ? 0.0 : kNaN;
  return exp_of_pair(product, std::fma(y, log.low, std::fma(y, log.high, -product)));
}

}  // namespace outrider
