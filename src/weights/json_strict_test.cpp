#include "weights/json_strict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace outrider {
namespace {

using testing::HasSubstr;

std::string refusal(std::string_view text, int depth = kConfigDepth) {
  return message_of([&] { parse_json(text, "config.json", depth); });
}

TEST(StrictJson, BuildsTheDocumentThatWasWritten) {
  const auto parsed = parse_json(R"({"a": [1, -2, 0.5, "x", null, true], "b": {"c": {}}})", "f");
  EXPECT_EQ(parsed.dump(), R"({"a":[1,-2,0.5,"x",null,true],"b":{"c":{}}})");
  EXPECT_EQ(parse_json("18446744073709551615", "f").get<std::uint64_t>(), 18446744073709551615ull);
}

TEST(StrictJson, RefusesDuplicateKeysAtEveryDepth) {
  EXPECT_THAT(refusal(R"({"a":1,"a":2})"), HasSubstr("config.json: duplicate key 'a'"));
  EXPECT_THAT(refusal(R"([{"b":{"a":1,"x":2,"a":3}}])"), HasSubstr("duplicate key 'a'"));
  EXPECT_EQ(refusal(R"([{"a":1},{"a":2}])"), "");
}

TEST(StrictJson, RefusesNestingAtTheLimitAndNotBelow) {
  EXPECT_EQ(refusal("[[[1]]]", 3), "");
  EXPECT_THAT(refusal("[[[[1]]]]", 3), HasSubstr("deeper than the limit of 3"));
  EXPECT_THAT(refusal(std::string(1'000'000, '[')), HasSubstr("deeper than the limit"));
}

TEST(StrictJson, NamesTheByteOfMalformedText) {
  EXPECT_THAT(refusal("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(refusal("{\"a\": NaN}"), HasSubstr("not valid JSON at byte 7"));
  EXPECT_THAT(refusal("{\"a\": 1e999}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\": 1} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(std::string_view("{\"a\": 1}\0garbage", 16)), HasSubstr("NUL at byte 8"));
  EXPECT_THAT(refusal(""), HasSubstr("not valid JSON"));
}

TEST(StrictJson, EveryRefusalCarriesARemedy) {
  for (const std::string_view text : {R"({"a":1,"a":2})", R"({"a": NaN})", "[[[[1]]]]", ""})
    EXPECT_THAT(refusal(text, 3), testing::EndsWith(" | correct it there, or get the file anew")) << text;
  EXPECT_THAT(refusal(std::string_view("{}\0", 3)), HasSubstr(" | correct it there"));
}

}  // namespace
}  // namespace outrider
