#include "weights/draft_ranking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_directory.h"

namespace outrider {
namespace {

TEST(DraftRanking, IsReadAsItWasWritten) {
  TestDirectory dir;
  EXPECT_TRUE(read_draft_ranking(dir.path(), 10).empty());
  const std::vector<std::int32_t> ids = {7, 0, 9, 3};
  dir.write(kDraftRankingFile, draft_ranking_text(ids));
  EXPECT_EQ(read_draft_ranking(dir.path(), 10), ids);
}

TEST(DraftRanking, RefusesWhatIsNotOne) {
  TestDirectory dir;
  const auto refusal = [&](const std::string& text) -> std::string {
    dir.write(kDraftRankingFile, text);
    try {
      read_draft_ranking(dir.path(), 10);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return error.what();
    }
    return "accepted";
  };
  for (const char* text : {"[1, 2]", "{}", R"({"ids": []})", R"({"ids": 3})", R"({"ids": [1], "more": 2})"})
    EXPECT_THAT(refusal(text), testing::HasSubstr("is not {\"ids\"")) << text;
  for (const char* id : {"10", "-1", "1.5", "\"a\"", "99999999999999999999", "null"})
    EXPECT_THAT(refusal(std::string(R"({"ids": [1, )") + id + "]}"), testing::HasSubstr("is no token of the 10")) << id;
  EXPECT_THAT(refusal(R"({"ids": [4, 5, 4]})"), testing::HasSubstr("token 4 twice"));
  EXPECT_THAT(refusal(R"({"ids": [4, )"), testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(R"({"ids": [4)" + std::string(1000, ' ') + "]}"),
              testing::HasSubstr("has 1012 bytes, 10 tokens"));
}

}  // namespace
}  // namespace outrider
