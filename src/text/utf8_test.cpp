#include "text/utf8.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(Utf8, AcceptsEveryScalarValueAndNothingElse) {
  // All 2-byte starts and the borders of the longer forms.
  for (const char* valid : {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                            "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(utf8_fault(valid), std::string_view::npos) << valid;
  }
  for (const char* broken : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                             "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "\xFF", "\xE2\x28\xA1"}) {
    EXPECT_EQ(utf8_fault(broken), 0u);
    EXPECT_NE(utf8_step(broken).kind, Utf8Kind::valid);
  }
  EXPECT_EQ(utf8_fault("ab\xE2\x82"), 2u);
  EXPECT_EQ(utf8_fault(std::string_view("\0a", 2)), std::string_view::npos);
}

TEST(Utf8, ReplacesMaximalPartsAndKeepsUnfinishedOnes) {
  // Unicode 15, section 3.9, table 3-8 and its neighbours.
  std::string bytes = "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64";
  EXPECT_EQ(take_utf8(bytes), "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(bytes, "");
  bytes = "x\xF0\x9F\x98";
  EXPECT_EQ(take_utf8(bytes), "x");
  EXPECT_EQ(bytes, "\xF0\x9F\x98");
  bytes += "\x80y";
  EXPECT_EQ(take_utf8(bytes), "\xF0\x9F\x98\x80y");
  bytes = "\xED\xA0\x80";
  EXPECT_EQ(take_utf8(bytes), "\uFFFD\uFFFD\uFFFD");
}

}  // namespace
}  // namespace outrider
