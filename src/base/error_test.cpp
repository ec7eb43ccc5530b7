#include "base/error.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(Error, CarriesKindTextAndHint) {
  try {
    throw Error(ErrorKind::memory, "4 GiB asked, 2 GiB free", "lower the context");
  } catch (const std::exception& caught) {
    const auto* error = dynamic_cast<const Error*>(&caught);
    ASSERT_NE(error, nullptr);
    EXPECT_STREQ(error->what(), "4 GiB asked, 2 GiB free");
    EXPECT_EQ(error->hint(), "lower the context");
    EXPECT_EQ(error->kind(), ErrorKind::memory);
  }
}

TEST(ErrorKind, NumbersAreTheExitCodesOfTheCommandLine) {
  EXPECT_EQ(static_cast<int>(ErrorKind::runtime), 1);
  EXPECT_EQ(static_cast<int>(ErrorKind::usage), 2);
  EXPECT_EQ(static_cast<int>(ErrorKind::data), 3);
  EXPECT_EQ(static_cast<int>(ErrorKind::memory), 4);
  EXPECT_EQ(static_cast<int>(ErrorKind::network), 5);
  EXPECT_EQ(static_cast<int>(ErrorKind::busy), 6);
  EXPECT_EQ(static_cast<int>(ErrorKind::interrupted), 130);
}

TEST(Result, HoldsAValueOrARefusal) {
  const auto half = [](int value) -> Result<int> {
    if (value % 2 != 0) return tl::unexpected(Refusal{"odd", "value", "out_of_range"});
    return value / 2;
  };
  EXPECT_EQ(half(8).value(), 4);
  ASSERT_FALSE(half(7).has_value());
  EXPECT_EQ(half(7).error().field, "value");
  EXPECT_EQ(half(7).error().http_status, 400);
}

TEST(CheckDeath, NamesTheConditionThePlaceAndTheValues) {
  const int rows = 3;
  OUTRIDER_CHECK(rows == 3, "{} rows", rows);
  EXPECT_DEATH(OUTRIDER_CHECK(rows == 4, "{} rows", rows), "CHECK\\(rows == 4\\).*error_test.cpp:[0-9]+: 3 rows");
  EXPECT_DEATH(OUTRIDER_CHECK(rows > 3), "CHECK\\(rows > 3\\)");
}

}  // namespace
}  // namespace outrider
