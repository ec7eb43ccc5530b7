// The elementary functions: error bounds against the C library in long double, special values, and their bytes.
#include "kernels/math.h"

#include "kernels/exp32_constants.h"
#include "kernels/vector_test_data.h"

namespace outrider {
namespace {

using vector_test::bits;
using vector_test::fnv1a;
using vector_test::kInfinity;
using vector_test::kNaN;
using vector_test::Random;

constexpr double kInfinity64 = std::numeric_limits<double>::infinity();
constexpr double kNaN64 = std::numeric_limits<double>::quiet_NaN();

// Uniform in [low, high).
double between(double low, double high, Random& random) {
  return low + (high - low) * std::ldexp(static_cast<double>(random.next() >> 11), -53);
}

// |got - want| in units of the last place of want as a double.
double ulps(double got, long double want) {
  if (want == 0.0L) return got == 0.0 ? 0.0 : 1e9;
  int exponent = 0;
  std::frexp(want, &exponent);
  return static_cast<double>(std::fabs(got - want) / std::ldexp(1.0L, std::max(exponent, -1021) - 53));
}

using Function = double (*)(double);
using Reference = long double (*)(long double);

// The largest error over n arguments, each made by `argument`.
template <class Argument>
double worst(Function function, Reference reference, Argument argument, int n = 60000) {
  Random random(7);
  double result = 0.0;
  for (int i = 0; i < n; ++i) {
    const double x = argument(random);
    result = std::max(result, ulps(function(x), reference(x)));
  }
  return result;
}

class Elementary : public testing::Test {
 protected:
  void SetUp() override {
    if (std::numeric_limits<long double>::digits < 64) GTEST_SKIP() << "long double is no better than double here";
  }
};

TEST(Exp32, IsWithinNineTenthsOfAnUlp) {
  double result = 0.0;
  for (std::uint64_t b = 0; b < 0x100000000U; b += 3989) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(b));
    if (!(x >= Exp32::kLowest && x <= Exp32::kHighest)) continue;
    const double want = std::exp(static_cast<double>(x));
    int exponent = 0;
    std::frexp(want, &exponent);
    result = std::max(result, std::fabs(exp32(x) - want) * std::ldexp(1.0, 24 - exponent));
  }
  EXPECT_LT(result, 0.9);
  EXPECT_GT(result, 0.5) << "better than correct rounding: the reference is wrong";
}

TEST(Exp32, HasItsSpecialValues) {
  EXPECT_EQ(bits(exp32(0.0F)), bits(1.0F));
  EXPECT_EQ(bits(exp32(-0.0F)), bits(1.0F));
  EXPECT_EQ(bits(exp32(0x1p-149F)), bits(1.0F));
  EXPECT_GT(exp32(-87.3F), 0x1p-126F);
  EXPECT_EQ(bits(exp32(std::nextafter(-87.3F, -100.0F))), bits(0.0F));
  EXPECT_EQ(bits(exp32(-kInfinity)), bits(0.0F));
  EXPECT_TRUE(std::isfinite(exp32(Exp32::kHighest)));
  EXPECT_EQ(exp32(std::nextafter(Exp32::kHighest, 100.0F)), kInfinity);
  EXPECT_EQ(exp32(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(exp32(kNaN)));
  EXPECT_TRUE(std::isnan(exp32(std::bit_cast<float>(0xffffffffU))));
}

TEST(Exp32, NeverDecreases) {
  float last = 0.0F;
  for (float x = -88.0F; x < 89.0F; x += 0.001F) {
    const float y = exp32(x);
    EXPECT_GE(y, last) << x;
    last = y;
  }
}

TEST(Sigmoid32, AndSiluFollowTheirDefinitions) {
  for (float x : {-200.0F, -88.5F, -10.0F, -1.0F, -0.0F, 0.0F, 0.7F, 20.0F, 100.0F}) {
    EXPECT_EQ(bits(sigmoid32(x)), bits(1.0F / (1.0F + exp32(-x)))) << x;
    EXPECT_EQ(bits(silu32(x)), bits(x / (1.0F + exp32(-x)))) << x;
    EXPECT_NEAR(sigmoid32(x), 1.0 / (1.0 + std::exp(-static_cast<double>(x))), 2e-7);
  }
  EXPECT_EQ(bits(silu32(-200.0F)), bits(-0.0F));  // the overflow of exp gives inf, hence 0
  EXPECT_EQ(sigmoid32(-200.0F), 0.0F);
  EXPECT_EQ(sigmoid32(200.0F), 1.0F);
}

TEST(Softplus32, IsWithinTwoUlps) {
  double result = 0.0;
  for (std::uint64_t b = 0; b < 0x100000000U; b += 3989) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(b));
    if (!(x >= Exp32::kLowest && x <= 20.0F)) continue;
    const double want = std::log1p(std::exp(static_cast<double>(x)));
    int exponent = 0;
    std::frexp(want, &exponent);
    result = std::max(result, std::fabs(softplus32(x) - want) * std::ldexp(1.0, 24 - exponent));
  }
  EXPECT_LT(result, 2.0);
  EXPECT_GT(result, 0.5) << "better than correct rounding: the reference is wrong";
}

TEST(Softplus32, HasItsSpecialValues) {
  EXPECT_EQ(bits(softplus32(0.0F)), bits(static_cast<float>(std::log(2.0))));
  EXPECT_EQ(softplus32(20.0F), 20.0F);
  EXPECT_EQ(softplus32(21.5F), 21.5F);
  EXPECT_EQ(softplus32(kInfinity), kInfinity);
  EXPECT_EQ(bits(softplus32(-100.0F)), bits(0.0F));
  EXPECT_EQ(bits(softplus32(-kInfinity)), bits(0.0F));
  EXPECT_TRUE(std::isnan(softplus32(kNaN)));
}

TEST_F(Elementary, Exp64StaysBelow0point65Ulp) {
  EXPECT_LT(worst(exp64, std::exp, [](Random& r) { return between(-708.0, 709.7, r); }), 0.65);
  EXPECT_LT(worst(exp64, std::exp, [](Random& r) { return between(-1.0, 1.0, r); }), 0.65);
  EXPECT_LT(worst(exp64, std::exp, [](Random& r) { return between(-745.0, -708.4, r); }), 0.8);
  EXPECT_EQ(exp64(0.0), 1.0);
  EXPECT_EQ(exp64(709.79), kInfinity64);
  EXPECT_EQ(exp64(710.0), kInfinity64);
  EXPECT_EQ(exp64(-746.0), 0.0);
  EXPECT_EQ(exp64(-kInfinity64), 0.0);
  EXPECT_TRUE(std::isnan(exp64(kNaN64)));
}

TEST_F(Elementary, Log64StaysBelow0point55Ulp) {
  EXPECT_LT(worst(log64, std::log, [](Random& r) { return std::exp(between(-700.0, 700.0, r)); }), 0.55);
  EXPECT_LT(worst(log64, std::log, [](Random& r) { return between(0.5, 2.0, r); }), 0.55);
  EXPECT_LT(worst(log64, std::log, [](Random& r) { return 1.0 + std::exp(between(-36.0, -1.0, r)); }), 0.55);
  EXPECT_LT(worst(log64, std::log, [](Random& r) { return 1.0 - std::exp(between(-36.0, -1.0, r)); }), 0.55);
  EXPECT_LT(worst(log64, std::log, [](Random& r) { return std::bit_cast<double>((r.next() >> 13) + 1); }), 0.55);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(log64(1.0)), 0U);
  EXPECT_EQ(log64(0.0), -kInfinity64);
  EXPECT_EQ(log64(kInfinity64), kInfinity64);
  EXPECT_TRUE(std::isnan(log64(-1.0)));
  EXPECT_TRUE(std::isnan(log64(kNaN64)));
}

TEST_F(Elementary, Log1p64StaysBelow0point55Ulp) {
  EXPECT_LT(worst(log1p64, std::log1p, [](Random& r) { return between(-0.999, 3.0, r); }), 0.55);
  EXPECT_LT(worst(log1p64, std::log1p, [](Random& r) { return std::exp(between(-60.0, 0.0, r)); }), 0.55);
  EXPECT_LT(worst(log1p64, std::log1p, [](Random& r) { return -std::exp(between(-60.0, -0.1, r)); }), 0.55);
  EXPECT_LT(worst(log1p64, std::log1p, [](Random& r) { return std::exp(between(0.0, 600.0, r)); }), 0.55);
  EXPECT_LT(worst(log1p64, std::log1p, [](Random& r) { return std::exp(between(-36.0, -1.0, r)) - 1.0; }), 0.55);
  EXPECT_EQ(log1p64(-1.0), -kInfinity64);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(log1p64(-0.0)), std::bit_cast<std::uint64_t>(-0.0));
  EXPECT_TRUE(std::isnan(log1p64(-1.5)));
}

TEST_F(Elementary, Expm164StaysBelow0point9Ulp) {
  EXPECT_LT(worst(expm164, std::expm1, [](Random& r) { return between(-40.0, 60.0, r); }), 0.9);
  EXPECT_LT(worst(expm164, std::expm1, [](Random& r) { return between(-1.0, 1.0, r); }), 0.9);
  EXPECT_LT(worst(expm164, std::expm1, [](Random& r) { return std::exp(between(-60.0, 0.0, r)); }), 0.9);
  EXPECT_LT(worst(expm164, std::expm1, [](Random& r) { return -std::exp(between(-60.0, 0.0, r)); }), 0.9);
  EXPECT_LT(worst(expm164, std::expm1, [](Random& r) { return between(36.0, 709.0, r); }), 0.9);
  EXPECT_EQ(expm164(-50.0), -1.0);
  EXPECT_EQ(expm164(-kInfinity64), -1.0);
  EXPECT_EQ(expm164(710.0), kInfinity64);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(expm164(-0.0)), std::bit_cast<std::uint64_t>(-0.0));
}

TEST_F(Elementary, SineAndCosineStayBelow0point8UlpUpTo2ToThe31) {
  const auto wide = [](Random& r) { return between(-0x1p31, 0x1p31, r); };
  const auto narrow = [](Random& r) { return between(-10.0, 10.0, r); };
  const auto angle = [](Random& r) { return static_cast<double>(static_cast<float>(between(-2e5, 2e5, r))); };
  // Next to a multiple of pi/2, where the reduction loses the most.
  const auto near = [](Random& r) {
    const long double n = static_cast<long double>(r.next() % 0x50000000U);
    return static_cast<double>(n * 1.57079632679489661923132169163975144L);
  };
  EXPECT_LT(worst(sin64, std::sin, wide), 0.8);
  EXPECT_LT(worst(cos64, std::cos, wide), 0.8);
  EXPECT_LT(worst(sin64, std::sin, narrow), 0.8);
  EXPECT_LT(worst(cos64, std::cos, narrow), 0.8);
  EXPECT_LT(worst(sin64, std::sin, angle), 0.8);
  EXPECT_LT(worst(cos64, std::cos, angle), 0.8);
  EXPECT_LT(worst(sin64, std::sin, near), 0.8);
  EXPECT_LT(worst(cos64, std::cos, near), 0.8);
}

TEST(Sine, AndCosineHaveTheirAnchors) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(sin64(0.0)), 0U);
  EXPECT_EQ(cos64(0.0), 1.0);
  EXPECT_EQ(sin64(0x1p-40), 0x1p-40);
  EXPECT_EQ(sin64(1.0), 0.8414709848078965);  // correctly rounded decimals
  EXPECT_EQ(cos64(1.0), 0.5403023058681398);
  EXPECT_EQ(sin64(-2.0), -0.9092974268256817);
  EXPECT_EQ(cos64(3.0), -0.9899924966004454);
  EXPECT_EQ(cos64(0x1.921fb54442d18p0), 0x1.1a62633145c07p-54);  // what double's pi/2 lacks
  EXPECT_EQ(sin64(0x1.921fb54442d18p1), 0x1.1a62633145c07p-53);
  EXPECT_TRUE(std::isnan(sin64(kInfinity64)));
  EXPECT_TRUE(std::isnan(cos64(0x1p60)));
  EXPECT_TRUE(std::isnan(cos64(kNaN64)));
  Random random(3);
  for (int i = 0; i < 1000; ++i) {
    const double x = between(-1e6, 1e6, random);
    double sin = 0.0, cos = 0.0;
    sincos64(x, &sin, &cos);
    EXPECT_EQ(sin, sin64(x));
    EXPECT_EQ(cos, cos64(x));
    EXPECT_EQ(sin64(-x), -sin);
    EXPECT_EQ(cos64(-x), cos);
  }
}

TEST_F(Elementary, Pow64StaysBelow0point85UlpForInverseFrequencies) {
  double result = 0.0;
  for (double theta : {1e4, 1e5, 5e5, 1e6, 1e7, 1e8}) {
    for (int width : {16, 64, 80, 128, 256}) {
      for (int i = 0; i < width / 2; ++i) {
        const double y = -2.0 * i / width;
        result = std::max(result, ulps(pow64(theta, y), std::pow(static_cast<long double>(theta), y)));
      }
    }
  }
  EXPECT_LT(result, 0.85);
}

TEST_F(Elementary, Pow64LosesAHundredthOfAnUlpPerUnitOfTheExponent) {
  Random random(5);
  for (int i = 0; i < 60000; ++i) {
    const double x = std::exp(between(-30.0, 30.0, random));
    const double y = between(-20.0, 20.0, random);
    const long double want = std::pow(static_cast<long double>(x), static_cast<long double>(y));
    EXPECT_LT(ulps(pow64(x, y), want), 0.65 + 0.01 * std::fabs(y * std::log(x))) << x << " " << y;
  }
}

TEST(Pow64, HasItsAnchorsAndSpecialValues) {
  // models.md 2.2: the dynamic theta, and an llama3 frequency at the end of the spectrum.
  EXPECT_NEAR(1e4 * pow64(2.0 * 8192 / 4096 - 1.0, 128.0 / 126.0), 30527.737, 5e-4);
  EXPECT_NEAR(pow64(5e5, -62.0 / 64.0) / 32.0, 9.4183067e-8, 5e-15);
  EXPECT_EQ(pow64(2.0, 10.0), 1024.0);
  EXPECT_EQ(pow64(1e4, -0.0), 1.0);
  EXPECT_EQ(pow64(1e4, -1.0), 1e-4);
  EXPECT_EQ(pow64(10.0, 400.0), kInfinity64);
  EXPECT_EQ(pow64(10.0, -400.0), 0.0);
  EXPECT_EQ(pow64(kInfinity64, -1.0), 0.0);
  EXPECT_TRUE(std::isnan(pow64(-1.0, 2.0)));
  EXPECT_TRUE(std::isnan(pow64(0.0, 2.0)));
}

// The bytes themselves: any change of a polynomial, an order or a rounding shows here.
template <class F>
std::uint64_t hash_of_function(F function, double low, double high) {
  Random random(11);
  std::uint64_t hash = fnv1a(nullptr, 0);
  for (int i = 0; i < 20000; ++i) {
    const auto y = function(between(low, high, random));
    hash = fnv1a(&y, sizeof(y), hash);
  }
  return hash;
}

TEST(ElementaryBytes, AreThoseOfTheFirstVersion) {
  EXPECT_EQ(hash_of_function([](double x) { return exp32(static_cast<float>(x)); }, -90.0, 90.0), 0xcf50f1419866adb9U);
  EXPECT_EQ(hash_of_function([](double x) { return silu32(static_cast<float>(x)); }, -90.0, 90.0), 0x8b9a79987803b8d2U);
  EXPECT_EQ(hash_of_function(exp64, -740.0, 712.0), 0x15a18bdc4a0fc795U);
  EXPECT_EQ(hash_of_function(log64, 0.0, 4.0), 0x6de5ffd7d9bfab4aU);
  EXPECT_EQ(hash_of_function(log1p64, -1.0, 4.0), 0xd026a4db603262c6U);
  EXPECT_EQ(hash_of_function(expm164, -5.0, 60.0), 0x5957b5419d07d196U);
  EXPECT_EQ(hash_of_function(sin64, -1e5, 1e5), 0xa39ef6c620bf6e5cU);
  EXPECT_EQ(hash_of_function(cos64, -1e5, 1e5), 0xfc17853554f308adU);
  EXPECT_EQ(hash_of_function([](double y) { return pow64(1e6, y); }, -1.0, 1.0), 0xa7cf9a20ecf8a611U);
}

}  // namespace
}  // namespace outrider
