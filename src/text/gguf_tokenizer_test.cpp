#include "text/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <cmath>
#include <functional>
#include <limits>
#include <unordered_map>

#include "text/gguf_for_test.h"
#include "text/model_text.h"
#include "text/tokenizer_goldens.h"
#include "text/utf8.h"

namespace outrider {
namespace {

using testing::error_of;
using testing::expect_golden;
using testing::fetched;
using testing::gguf_of;
using testing::golden_path;
using ::testing::HasSubstr;

Tokenizer tokenizer_of(const GgufTokenizer& metadata) {
  return Tokenizer::from_json(tokenizer_files_from_gguf(metadata).tokenizer_json, "gguf");
}

nlohmann::json tiny(const std::string& name) {
  return nlohmann::json::parse(testing::file_text(golden_path(name + ".tokenizer.json")));
}

GgufTokenizer tiny_byte_level() {
  GgufTokenizer metadata = gguf_of(tiny("tiny_byte_level"), "gpt2", "llama-bpe");
  for (std::size_t id = 0; id < metadata.tokens.size(); ++id) {
    if (metadata.tokens[id] == "<|begin_of_text|>") metadata.bos_token_id = static_cast<std::int64_t>(id);
    if (metadata.tokens[id] == "<|eot_id|>") metadata.eos_token_id = static_cast<std::int64_t>(id);
  }
  return metadata;
}

GgufTokenizer tiny_sentencepiece() {
  GgufTokenizer metadata = gguf_of(tiny("tiny_sentencepiece"), "llama", "");
  metadata.bos_token_id = 1;
  metadata.eos_token_id = 2;
  return metadata;
}

TEST(GgufTokenizer, SmolLM2EqualsThePythonPackage) {
  const auto path = fetched("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  OUTRIDER_NEEDS(path);
  const auto start = std::chrono::steady_clock::now();
  const GgufTokenizer metadata = testing::MiniGguf(path).tokenizer();
  const ModelText model = model_text_from_files(tokenizer_files_from_gguf(metadata), "smollm2");
  // Loading is part of the 0.5 s to the first token.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(model.tokenizer.size(), 49152);
  EXPECT_EQ(model.bos_token, "<|im_start|>");
  EXPECT_EQ(model.eos_token, "<|im_end|>");
  EXPECT_THAT(model.tokenizer_eos_ids, ::testing::ElementsAre(2));
  EXPECT_TRUE(model.chat_template);
  expect_golden(model.tokenizer, "smollm2");
}

TEST(GgufTokenizer, ATinyByteLevelVocabularySurvivesTheRoundTrip) {
  expect_golden(tokenizer_of(tiny_byte_level()), "tiny_byte_level");
}

TEST(GgufTokenizer, ATinySentencepieceVocabularySurvivesTheRoundTrip) {
  expect_golden(tokenizer_of(tiny_sentencepiece()), "tiny_sentencepiece");
}

struct Original {
  const char* family;
  const char* model;
  const char* pre;
  const char* bos;  // none: the original adds none
};

class RoundTrip : public ::testing::TestWithParam<Original> {};

TEST_P(RoundTrip, ThroughGgufKeepsIds) {
  const Original& original = GetParam();
  const auto path = fetched(std::string("tokenizers/") + original.family + "/tokenizer.json");
  OUTRIDER_NEEDS(path);
  const auto json = nlohmann::json::parse(testing::file_text(path));
  GgufTokenizer metadata = gguf_of(json, original.model, original.pre);
  for (std::size_t id = 0; id < metadata.tokens.size(); ++id) {
    if (metadata.tokens[id] == original.bos) metadata.bos_token_id = static_cast<std::int64_t>(id);
  }
  metadata.add_bos_token = metadata.bos_token_id.has_value();
  // Padding rows of the embedding, as converters add them.
  for (int i = 0; i < 5; ++i) {
    metadata.tokens.push_back(fmt::format("[PAD{}]", i));
    metadata.token_types.push_back(5);
    if (!metadata.scores.empty()) metadata.scores.push_back(-1000);
  }
  expect_golden(tokenizer_of(metadata), original.family);
}

INSTANTIATE_TEST_SUITE_P(Gguf, RoundTrip,
                         ::testing::Values(Original{"llama3", "gpt2", "llama-bpe", ""},
                                           Original{"qwen3", "gpt2", "qwen2", ""},
                                           Original{"llama2", "llama", "default", "<s>"}),
                         [](const auto& info) { return std::string(info.param.family); });

// Sentencepiece's rule in its plainest form: of all neighbours whose union is a piece, merge the best score, leftmost
// first; what stays unknown becomes bytes.
class PlainSentencepiece {
 public:
  explicit PlainSentencepiece(const GgufTokenizer& metadata) : scores_(metadata.scores) {
    for (std::size_t id = 0; id < metadata.tokens.size(); ++id) {
      if (metadata.token_types[id] == 1) ids_[metadata.tokens[id]] = static_cast<std::int32_t>(id);
    }
  }

  std::vector<std::int32_t> encode(const std::string& text) const {
    std::vector<std::string> symbols = characters(text.empty() ? "" : " " + text);
    for (std::size_t best = best_pair(symbols); best < symbols.size(); best = best_pair(symbols)) {
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    std::vector<std::int32_t> result;
    for (const std::string& symbol : symbols) {
      if (const auto found = ids_.find(symbol); found != ids_.end()) {
        result.push_back(found->second);
      } else {
        for (const char byte : symbol) result.push_back(3 + static_cast<unsigned char>(byte));
      }
    }
    return result;
  }

 private:
  static std::vector<std::string> characters(const std::string& text) {
    std::vector<std::string> symbols;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = utf8_step(std::string_view(text).substr(at)).size;
      symbols.push_back(text[at] == ' ' ? "\xE2\x96\x81" : text.substr(at, size));
      at += size;
    }
    return symbols;
  }

  // symbols.size() if no two neighbours make a piece.
  std::size_t best_pair(const std::vector<std::string>& symbols) const {
    std::size_t best = symbols.size();
    float best_score = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ids_.find(symbols[i] + symbols[i + 1]);
      if (found != ids_.end() && scores_[static_cast<std::size_t>(found->second)] > best_score) {
        best = i;
        best_score = scores_[static_cast<std::size_t>(found->second)];
      }
    }
    return best;
  }

  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<float> scores_;
};

void expect_sentencepiece(const GgufTokenizer& metadata) {
  const Tokenizer tokenizer = tokenizer_of(metadata);
  const PlainSentencepiece plain(metadata);
  const auto small_alphabet = rc::gen::elementOf(std::vector<std::string>{
      "a", "a", "b", "n", " ", " ", "h", "e", "l", "t", "o", "k", "0", "\n", "\xC3\xA9", "\xF0\x9F\x98\x80"});
  EXPECT_TRUE(rc::check("ids are sentencepiece's", [&] {
    std::string text;
    for (const std::string& part : *rc::gen::container<std::vector<std::string>>(small_alphabet)) text += part;
    RC_ASSERT(tokenizer.encode(text, AddSpecial::no, ParseSpecial::yes) == plain.encode(text));
  }));
  for (const char* unit : {" ", "a", "ab", "aba", "ha", "\n", "=", "-", ".", "0", "aab", "an", "na "}) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += unit;
      EXPECT_EQ(tokenizer.encode(text, AddSpecial::no, ParseSpecial::yes), plain.encode(text)) << text;
    }
  }
}

TEST(GgufTokenizer, SentencepieceScoresGiveSentencepiecesIds) { expect_sentencepiece(tiny_sentencepiece()); }

TEST(GgufTokenizer, SentencepieceScoresGiveSentencepiecesIdsForLlama2) {
  const auto path = fetched("tokenizers/llama2/tokenizer.json");
  OUTRIDER_NEEDS(path);
  expect_sentencepiece(gguf_of(nlohmann::json::parse(testing::file_text(path)), "llama", ""));
}

TEST(GgufTokenizer, FlagsDecideBosEosAndTheSpacePrefix) {
  GgufTokenizer metadata = tiny_sentencepiece();
  const auto ids = [&](AddSpecial add) { return tokenizer_of(metadata).encode("the", add, ParseSpecial::yes); };
  EXPECT_EQ(ids(AddSpecial::yes).front(), 1);  // llama adds BOS unless told otherwise
  metadata.add_bos_token = false;
  EXPECT_EQ(ids(AddSpecial::yes), ids(AddSpecial::no));
  metadata.add_eos_token = true;
  EXPECT_EQ(ids(AddSpecial::yes).back(), 2);
  const auto prefixed = ids(AddSpecial::no);
  metadata.add_space_prefix = false;
  EXPECT_NE(ids(AddSpecial::no), prefixed);
  const Tokenizer bare = tokenizer_of(metadata);
  EXPECT_EQ(bare.decode(bare.encode(" the", AddSpecial::no, ParseSpecial::yes), SkipSpecial::no), " the");
  GgufTokenizer byte_level = tiny_byte_level();
  byte_level.add_bos_token = false;
  EXPECT_EQ(tokenizer_of(byte_level).encode("a", AddSpecial::yes, ParseSpecial::yes).size(), 1u);
  byte_level.pre = "qwen2";
  byte_level.add_bos_token.reset();
  EXPECT_EQ(tokenizer_of(byte_level).encode("a", AddSpecial::yes, ParseSpecial::yes).size(), 1u);
}

TEST(GgufTokenizer, TypesDecideWhichTokensAreAdded) {
  const Tokenizer tokenizer = tokenizer_of(tiny_byte_level());
  EXPECT_TRUE(tokenizer.is_special(tokenizer.id_of("<|eot_id|>")));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.id_of("<think>")));
  EXPECT_EQ(tokenizer.encode("<think>", AddSpecial::no, ParseSpecial::no).size(), 1u);
  GgufTokenizer untyped = tiny_byte_level();
  untyped.token_types.clear();
  const Tokenizer without_types = tokenizer_of(untyped);
  EXPECT_TRUE(without_types.is_special(without_types.id_of("<|eot_id|>")));
  EXPECT_FALSE(without_types.is_special(without_types.id_of("<|im_end|>")));
}

TEST(GgufTokenizer, UserDefinedSentencepieceTokensMatchSpaces) {
  GgufTokenizer metadata = tiny_sentencepiece();
  metadata.tokens.push_back("\xE2\x96\x81\xE2\x96\x81\xE2\x96\x81");
  metadata.token_types.push_back(4);
  metadata.scores.push_back(0);
  const Tokenizer tokenizer = tokenizer_of(metadata);
  const auto ids = tokenizer.encode("the   token", AddSpecial::no, ParseSpecial::yes);
  EXPECT_THAT(ids, ::testing::Contains(static_cast<std::int32_t>(metadata.tokens.size()) - 1));
  EXPECT_THAT(tokenizer.decode(ids, SkipSpecial::no), HasSubstr("the   "));
}

TEST(GgufTokenizer, NamesMarkersInTheConfig) {
  GgufTokenizer metadata = tiny_byte_level();
  metadata.eot_token_id = metadata.bos_token_id;
  metadata.chat_template = "{{ bos_token }}{{ messages[0].content }}";
  const ModelText text = model_text_from_files(tokenizer_files_from_gguf(metadata), "x.gguf");
  EXPECT_EQ(text.eos_token, "<|eot_id|>");
  EXPECT_THAT(text.tokenizer_eos_ids, ::testing::ElementsAre(*metadata.eos_token_id, *metadata.eot_token_id));
  EXPECT_EQ(text.render_chat(nlohmann::ordered_json::parse(R"({"messages":[{"role":"user","content":"q"}]})"),
                             GenerationPrompt::no),
            "<|begin_of_text|>q");
}

TEST(GgufTokenizer, RefusesMalformedMetadata) {
  struct Case {
    std::function<void(GgufTokenizer&)> damage;
    const char* says;
  };
  const Case byte_level_cases[] = {
      {[](auto& m) { m.model = "rwkv"; }, "\"rwkv\"; \"gpt2\" and \"llama\""},
      {[](auto& m) { m.pre = "dbrx"; }, "\"dbrx\"; smollm, llama-bpe, qwen2"},
      {[](auto& m) { m.pre = ""; }, "tokenizer.ggml.pre is absent"},
      {[](auto& m) { m.tokens.clear(); }, "tokens is empty"},
      {[](auto& m) { m.merges.clear(); }, "merges is empty"},
      {[](auto& m) { m.token_types.pop_back(); }, "token_type has"},
      {[](auto& m) { m.scores = {1.0f}; }, "scores has 1 entries"},
      {[](auto& m) { m.token_types[3] = 7; }, "token_type of token 3 is 7; 1 to 6"},
      {[](auto& m) { m.token_types[3] = -1; }, "token_type of token 3 is -1"},
      {[](auto& m) { m.tokens[5] = ""; }, "token 5 is empty"},
      {[](auto& m) { m.tokens[5] = "a\xC3"; }, "token 5 is not UTF-8: invalid byte at offset 1"},
      {[](auto& m) { m.tokens[9] = m.tokens[5]; }, "tokens 5 and 9 are both"},
      {[](auto& m) { m.bos_token_id = -1; }, "bos_token_id is -1"},
      {[](auto& m) { m.eos_token_id = 1 << 30; }, "eos_token_id is 1073741824"},
      {[](auto& m) { m.padding_token_id = 1 << 30; }, "padding_token_id"},
      {[](auto& m) { m.unknown_token_id = 1 << 30; }, "unknown_token_id"},
      {[](auto& m) { m.eot_token_id = 1 << 30; }, "eot_token_id"},
      {[](auto& m) { m.bos_token_id.reset(), m.add_bos_token = true; }, "there is no bos_token_id"},
      {[](auto& m) { m.eos_token_id.reset(), m.add_eos_token = true; }, "there is no eos_token_id"},
      {[](auto& m) { m.merges[2] = "ab"; }, "merge 2 is \"ab\"; two tokens"},
      {[](auto& m) { m.merges[2] = " ab"; }, "merge 2"},
      {[](auto& m) { m.merges[2] = "a "; }, "merge 2"},
      {[](auto& m) { m.merges[2] = "a b c"; }, "merge 2"},
      {[](auto& m) { m.merges[2] = "a zzzz"; }, "\"zzzz\" is not a token"},
      {[](auto& m) { m.merges[2] = "z q"; }, "\"zq\" is not a token"},
      {[](auto& m) { m.merges[2] = "\xff q"; }, "is not a token"},
      {[](auto& m) { m.chat_template = "\xff"; }, "chat_template is not UTF-8"},
  };
  const Case sentencepiece_cases[] = {
      {[](auto& m) { m.scores.clear(); }, "scores is absent"},
      {[](auto& m) { m.scores[300] = std::nanf(""); }, "score of token 300 is not finite"},
      {[](auto& m) { m.tokens[10] = "<0xZZ>"; }, "token 10 has type 6 (byte) but is \"<0xZZ>\""},
  };
  const auto expect = [](GgufTokenizer metadata, const Case& broken) {
    broken.damage(metadata);
    const Error error = error_of([&] { tokenizer_files_from_gguf(metadata); });
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), HasSubstr(broken.says));
  };
  for (const Case& broken : byte_level_cases) expect(tiny_byte_level(), broken);
  for (const Case& broken : sentencepiece_cases) expect(tiny_sentencepiece(), broken);
}

TEST(GgufTokenizer, IdsOfTheDroppedPaddingAreNotMarkers) {
  GgufTokenizer metadata = tiny_byte_level();
  metadata.tokens.push_back("[PAD]");
  metadata.token_types.push_back(5);
  metadata.bos_token_id = static_cast<std::int64_t>(metadata.tokens.size()) - 1;
  EXPECT_EQ(error_of([&] { tokenizer_files_from_gguf(metadata); }).kind(), ErrorKind::data);
}

}  // namespace
}  // namespace outrider
