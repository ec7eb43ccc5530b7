#include "text/text_stream.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <chrono>

#include "text/tokenizer_goldens.h"
#include "text/utf8.h"

namespace outrider {
namespace {

using testing::error_of;
using testing::golden_path;
using testing::streamed;

const Tokenizer& tiny(const std::string& name) {
  static const Tokenizer byte_level = Tokenizer::from_file(golden_path("tiny_byte_level.tokenizer.json"));
  static const Tokenizer sentencepiece = Tokenizer::from_file(golden_path("tiny_sentencepiece.tokenizer.json"));
  return name == "tiny_byte_level" ? byte_level : sentencepiece;
}

// A tokenizer of no known family, whose text depends on what comes before.
Tokenizer with_decoder(const std::string& decoder) {
  auto json = nlohmann::json::parse(testing::file_text(golden_path("tiny_sentencepiece.tokenizer.json")));
  json["decoder"] = nlohmann::json::parse(decoder);
  return Tokenizer::from_json(json.dump(), "test");
}

TEST(TextStream, EqualsDecodeForAnyIds) {
  for (const char* name : {"tiny_byte_level", "tiny_sentencepiece"}) {
    const Tokenizer& tokenizer = tiny(name);
    EXPECT_TRUE(rc::check(std::string("stream of ") + name, [&] {
      const auto ids = *rc::gen::container<std::vector<std::int32_t>>(rc::gen::inRange(0, tokenizer.size()));
      for (const SkipSpecial skip : {SkipSpecial::no, SkipSpecial::yes}) {
        RC_ASSERT(streamed(tokenizer, ids, skip) == tokenizer.decode(ids, skip));
      }
    }));
  }
}

TEST(TextStream, EqualsDecodeForAnyBytes) {
  // Byte tokens only: every way to be valid, broken and unfinished UTF-8.
  const auto byte =
      rc::gen::oneOf(rc::gen::inRange(0, 256),
                     rc::gen::elementOf(std::vector<int>{0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xA0, 0x41}));
  const Tokenizer& byte_level = tiny("tiny_byte_level");
  const Tokenizer& sentencepiece = tiny("tiny_sentencepiece");
  std::vector<std::int32_t> id_of_byte(256);
  for (std::int32_t id = 0; id < byte_level.size(); ++id) {
    if (const std::string bytes = byte_level.token_bytes(id); bytes.size() == 1) {
      id_of_byte[static_cast<unsigned char>(bytes[0])] = id;
    }
  }
  EXPECT_TRUE(rc::check("stream of bytes", [&] {
    const auto bytes = *rc::gen::container<std::vector<int>>(byte);
    std::vector<std::int32_t> level_ids, piece_ids;
    for (const int b : bytes) {
      level_ids.push_back(id_of_byte[static_cast<std::size_t>(b)]);
      piece_ids.push_back(3 + b);
      if (b == 0x41) piece_ids.push_back(sentencepiece.id_of("\xE2\x96\x81"));
    }
    RC_ASSERT(streamed(byte_level, level_ids, SkipSpecial::no) == byte_level.decode(level_ids, SkipSpecial::no));
    RC_ASSERT(streamed(sentencepiece, piece_ids, SkipSpecial::no) == sentencepiece.decode(piece_ids, SkipSpecial::no));
  }));
}

TEST(TextStream, NeverReturnsPartOfACharacter) {
  for (const char* name : {"tiny_byte_level", "tiny_sentencepiece"}) {
    for (const auto& ids : testing::random_ids(tiny(name).size())) {
      TextStream stream(tiny(name), SkipSpecial::no);
      for (const std::int32_t id : ids) EXPECT_EQ(utf8_fault(stream.push(id)), std::string::npos);
      EXPECT_EQ(utf8_fault(stream.finish()), std::string::npos);
    }
  }
}

TEST(TextStream, HoldsACharacterUntilItIsWhole) {
  const Tokenizer& tokenizer = tiny("tiny_byte_level");
  const auto ids = tokenizer.encode("\xF0\x9F\xA6\x95", AddSpecial::no, ParseSpecial::yes);
  ASSERT_GT(ids.size(), 1u);
  TextStream stream(tokenizer, SkipSpecial::no);
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(stream.push(ids[i]), "");
  EXPECT_EQ(stream.push(ids.back()), "\xF0\x9F\xA6\x95");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, AnUnfinishedCharacterEndsAsOneReplacement) {
  const Tokenizer& tokenizer = tiny("tiny_byte_level");
  const auto ids = tokenizer.encode("\xF0\x9F\xA6\x95", AddSpecial::no, ParseSpecial::yes);
  TextStream stream(tokenizer, SkipSpecial::no);
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST(TextStream, DropsTheLeadingSpaceOfSentencepieceOnce) {
  const Tokenizer& tokenizer = tiny("tiny_sentencepiece");
  const auto ids = tokenizer.encode("the  token", AddSpecial::yes, ParseSpecial::yes);
  EXPECT_EQ(streamed(tokenizer, ids, SkipSpecial::yes), "the  token");
  EXPECT_EQ(streamed(tokenizer, tokenizer.encode(" the", AddSpecial::no, ParseSpecial::yes), SkipSpecial::yes), " the");
}

TEST(TextStream, SkipsSpecialTokensOnlyWhenAsked) {
  const Tokenizer& tokenizer = tiny("tiny_byte_level");
  const auto ids = tokenizer.encode("a<|im_end|>b", AddSpecial::no, ParseSpecial::yes);
  EXPECT_EQ(streamed(tokenizer, ids, SkipSpecial::yes), "ab");
  EXPECT_EQ(streamed(tokenizer, ids, SkipSpecial::no), "a<|im_end|>b");
}

TEST(TextStream, AnIdOutOfRangeLeavesTheStreamUnchanged) {
  const Tokenizer& tokenizer = tiny("tiny_byte_level");
  const auto ids = tokenizer.encode("\xF0\x9F\xA6\x95", AddSpecial::no, ParseSpecial::yes);
  TextStream stream(tokenizer, SkipSpecial::no);
  std::string text;
  for (const std::int32_t id : ids) {
    text += stream.push(id);
    EXPECT_EQ(error_of([&] { stream.push(tokenizer.size()); }).kind(), ErrorKind::usage);
    EXPECT_EQ(error_of([&] { stream.push(-1); }).kind(), ErrorKind::usage);
  }
  EXPECT_EQ(text, "\xF0\x9F\xA6\x95");
}

TEST(TextStream, FollowsDecodersOfOtherKinds) {
  const Tokenizer tokenizers[] = {
      with_decoder(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true})"),
      with_decoder(R"({"type":"WordPiece","prefix":"##","cleanup":false})"), with_decoder("null")};
  for (const Tokenizer& tokenizer : tokenizers) {
    for (const auto& ids : testing::random_ids(tokenizer.size())) {
      for (const SkipSpecial skip : {SkipSpecial::no, SkipSpecial::yes}) {
        EXPECT_EQ(streamed(tokenizer, ids, skip), tokenizer.decode(ids, skip));
      }
    }
  }
}

TEST(TextStream, TimePerTokenDoesNotGrow) {
  // 200,000 tokens: with work in proportion to the text so far this would take minutes.
  const Tokenizer& tokenizer = tiny("tiny_byte_level");
  const std::int32_t lone_byte = tokenizer.encode("\xF0\x9F\xA6\x95", AddSpecial::no, ParseSpecial::yes)[0];
  TextStream stream(tokenizer, SkipSpecial::no);
  const auto start = std::chrono::steady_clock::now();
  std::size_t bytes = 0;
  for (int i = 0; i < 200000; ++i) bytes += stream.push(lone_byte).size();
  EXPECT_EQ(bytes + stream.finish().size(), 200000u * 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace outrider
