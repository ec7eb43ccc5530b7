#include "text/tokenizer.h"

#include <gmock/gmock.h>

#include <thread>

#include "text/tokenizer_goldens.h"
#include "text/utf8.h"

namespace outrider {
namespace {

using testing::error_of;
using testing::expect_golden;
using testing::fetched;
using testing::golden_path;
using ::testing::HasSubstr;

Tokenizer tiny(const std::string& name) { return Tokenizer::from_file(golden_path(name + ".tokenizer.json")); }

TEST(Tokenizer, EqualsThePythonPackageOnATinyByteLevelVocabulary) {
  expect_golden(tiny("tiny_byte_level"), "tiny_byte_level");
}

TEST(Tokenizer, EqualsThePythonPackageOnATinySentencepieceVocabulary) {
  expect_golden(tiny("tiny_sentencepiece"), "tiny_sentencepiece");
}

class Family : public ::testing::TestWithParam<const char*> {};

TEST_P(Family, EqualsThePythonPackage) {
  const auto path = fetched(std::string("tokenizers/") + GetParam() + "/tokenizer.json");
  OUTRIDER_NEEDS(path);
  const Tokenizer tokenizer = Tokenizer::from_file(path);
  expect_golden(tokenizer, GetParam());
  // What the memory plan counts: more than the vocabulary's text, less than a hundred times a token.
  EXPECT_GT(tokenizer.heap_bytes(), static_cast<std::size_t>(tokenizer.size()) * 20);
  EXPECT_LT(tokenizer.heap_bytes(), static_cast<std::size_t>(tokenizer.size()) * 2000);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Family,
                         ::testing::Values("qwen3", "llama2", "llama3", "llama3_1", "gemma3", "gptoss", "deepseek_v3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, SpelledSpecialTokensAreTextUnlessAsked) {
  const Tokenizer tokenizer = tiny("tiny_byte_level");
  const std::int32_t end = tokenizer.id_of("<|eot_id|>");
  EXPECT_THAT(tokenizer.encode("a<|eot_id|>", AddSpecial::no, ParseSpecial::yes), ::testing::Contains(end));
  const auto plain = tokenizer.encode("a<|eot_id|>", AddSpecial::no, ParseSpecial::no);
  EXPECT_THAT(plain, ::testing::Not(::testing::Contains(end)));
  EXPECT_EQ(tokenizer.decode(plain, SkipSpecial::yes), "a<|eot_id|>");
  // Added tokens that are not special stay tokens: templates and parsers rely on them.
  EXPECT_THAT(tokenizer.encode("<think>", AddSpecial::no, ParseSpecial::no),
              ::testing::ElementsAre(tokenizer.id_of("<think>")));
}

TEST(Tokenizer, AddsBosOnlyWhenAsked) {
  const Tokenizer tokenizer = tiny("tiny_sentencepiece");
  EXPECT_EQ(tokenizer.encode("a", AddSpecial::yes, ParseSpecial::yes).front(), tokenizer.id_of("<s>"));
  EXPECT_NE(tokenizer.encode("a", AddSpecial::no, ParseSpecial::yes).front(), tokenizer.id_of("<s>"));
}

TEST(Tokenizer, NamesTheFirstInvalidByte) {
  const Tokenizer tokenizer = tiny("tiny_byte_level");
  for (const char* text : {"ab\xff", "ab\xc3(", "ab\xed\xa0\x80", "ab\xf5\x80\x80\x80", "ab\xe2\x82"}) {
    const Error error = error_of([&] { tokenizer.encode(text, AddSpecial::no, ParseSpecial::yes); });
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("offset 2"));
  }
}

TEST(Tokenizer, RefusesIdsOutsideTheVocabulary) {
  const Tokenizer tokenizer = tiny("tiny_byte_level");
  for (const std::int32_t id : {-1, tokenizer.size(), INT32_MAX, INT32_MIN}) {
    const std::int32_t ids[] = {0, id};
    const Error error = error_of([&] { tokenizer.decode(ids, SkipSpecial::no); });
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(id)));
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(tokenizer.size())));
    EXPECT_THROW(tokenizer.piece(id), Error);
    EXPECT_THROW(tokenizer.token_bytes(id), Error);
    EXPECT_FALSE(tokenizer.is_special(id));
  }
}

TEST(Tokenizer, PiecesAndIdsAreInverse) {
  for (const char* name : {"tiny_byte_level", "tiny_sentencepiece"}) {
    const Tokenizer tokenizer = tiny(name);
    for (std::int32_t id = 0; id < tokenizer.size(); ++id) EXPECT_EQ(tokenizer.id_of(tokenizer.piece(id)), id);
    EXPECT_EQ(tokenizer.id_of("no such piece"), -1);
    EXPECT_EQ(tokenizer.id_of("\xff"), -1);
    EXPECT_EQ(tokenizer.id_of(""), -1);
  }
}

TEST(Tokenizer, BytesOfTokensAreWhatTheyAddToAText) {
  for (const char* name : {"tiny_byte_level", "tiny_sentencepiece"}) {
    const Tokenizer tokenizer = tiny(name);
    const auto anchor = tokenizer.encode("x", AddSpecial::no, ParseSpecial::yes);
    const std::string before = tokenizer.decode(anchor, SkipSpecial::no);
    for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
      const std::string bytes = tokenizer.token_bytes(id);
      if (utf8_fault(bytes) != std::string::npos) continue;
      auto ids = anchor;
      ids.push_back(id);
      EXPECT_EQ(tokenizer.decode(ids, SkipSpecial::no), before + bytes) << name << " " << id;
    }
  }
  EXPECT_EQ(tiny("tiny_sentencepiece").token_bytes(3 + 0xE2), "\xE2");
}

TEST(Tokenizer, KnowsSpecialTokens) {
  const Tokenizer tokenizer = tiny("tiny_byte_level");
  EXPECT_TRUE(tokenizer.is_special(tokenizer.id_of("<|im_end|>")));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.id_of("<think>")));
  EXPECT_FALSE(tokenizer.is_special(0));
}

TEST(Tokenizer, ReadsFilesAndNamesThemInErrors) {
  const Error missing = error_of([] { Tokenizer::from_file("/nonexistent/tokenizer.json"); });
  EXPECT_EQ(missing.kind(), ErrorKind::data);
  EXPECT_THAT(missing.what(), HasSubstr("/nonexistent/tokenizer.json"));
  EXPECT_EQ(error_of([] { Tokenizer::from_file("/"); }).kind(), ErrorKind::data);
}

TEST(Tokenizer, RefusesBrokenFilesWithoutCrashing) {
  const std::string deep = std::string(100000, '[');
  const std::string whole = testing::file_text(golden_path("tiny_byte_level.tokenizer.json"));
  auto with_dropout = nlohmann::json::parse(whole);
  with_dropout["model"]["dropout"] = 0.5;
  auto with_huge_id = nlohmann::json::parse(whole);
  with_huge_id["model"]["vocab"]["zz"] = 4000000000u;
  auto bad_merge = nlohmann::json::parse(whole);
  bad_merge["model"]["merges"].push_back({"zz", "top"});
  auto bad_regex = nlohmann::json::parse(whole);
  bad_regex["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(((";
  auto bad_decoder = nlohmann::json::parse(whole);
  bad_decoder["decoder"] = 7;
  const std::string broken[] = {"",
                                "{",
                                "null",
                                "[]",
                                "{}",
                                "{\"version\":\"1.0\"}",
                                "{\"version\":\"2.0\",\"model\":{}}",
                                "\xff\xfe",
                                deep,
                                whole.substr(0, whole.size() / 2),
                                with_dropout.dump(),
                                with_huge_id.dump(),
                                bad_merge.dump(),
                                bad_regex.dump(),
                                bad_decoder.dump()};
  for (const std::string& text : broken) {
    const Error error = error_of([&] { Tokenizer::from_json(text, "some/tokenizer.json"); });
    EXPECT_EQ(error.kind(), ErrorKind::data) << text.substr(0, 80);
    EXPECT_THAT(error.what(), ::testing::StartsWith("some/tokenizer.json: "));
    EXPECT_GT(std::string(error.what()).size(), 25u);
  }
}

TEST(Tokenizer, EncodesFromSeveralThreadsAtOnce) {
  const Tokenizer tokenizer = tiny("tiny_byte_level");
  const auto strings = testing::nasty_strings();
  std::vector<std::vector<std::int32_t>> expected;
  for (const auto& text : strings) expected.push_back(tokenizer.encode(text, AddSpecial::no, ParseSpecial::yes));
  std::atomic<int> faults = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < strings.size(); ++i) {
          faults += tokenizer.encode(strings[i], AddSpecial::no, ParseSpecial::yes) != expected[i];
        }
      });
    }
  }
  EXPECT_EQ(faults, 0);
}

TEST(Tokenizer, LongTextsTakeTimeInProportion) {
  // 2 MB without a single split point: quadratic work would not end.
  for (const char* name : {"tiny_byte_level", "tiny_sentencepiece"}) {
    const Tokenizer tokenizer = tiny(name);
    const std::string text(std::size_t{2} << 20, 'a');
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, AddSpecial::no, ParseSpecial::yes), SkipSpecial::no), text);
  }
}

}  // namespace
}  // namespace outrider
