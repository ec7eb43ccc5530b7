#include "base/saturating.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

TEST(Saturating, SumsAndProductsStopAtTheLargestValue) {
  EXPECT_EQ(saturating_add(3, 4), 7u);
  EXPECT_EQ(saturating_add(kMost - 1, 1), kMost);
  EXPECT_EQ(saturating_add(kMost, 1), kMost);
  EXPECT_EQ(saturating_add(kMost, kMost), kMost);
  EXPECT_EQ(saturating_mul(3, 4), 12u);
  EXPECT_EQ(saturating_mul(kMost, 0), 0u);
  EXPECT_EQ(saturating_mul(kMost, 1), kMost);
  EXPECT_EQ(saturating_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 31), std::uint64_t{1} << 63);
  EXPECT_EQ(saturating_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), kMost);
}

}  // namespace
}  // namespace outrider
