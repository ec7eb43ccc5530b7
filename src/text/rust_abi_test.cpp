// The C ABI itself: codes, ownership, panics, and grammars, which nothing else calls yet.
#include <gmock/gmock.h>

#include "text/rust_call.h"
#include "text/test_data.h"

namespace outrider {
namespace {

using testing::golden_path;
using ::testing::HasSubstr;

struct FreeTokenizer {
  void operator()(outrider_tokenizer* t) const { outrider_tokenizer_free(t); }
};
struct FreeGrammars {
  void operator()(outrider_grammar_env* g) const { outrider_grammar_env_free(g); }
};
using TokenizerHandle = std::unique_ptr<outrider_tokenizer, FreeTokenizer>;
using GrammarHandle = std::unique_ptr<outrider_grammar_env, FreeGrammars>;

TokenizerHandle tiny() {
  const std::string json = testing::file_text(golden_path("tiny_byte_level.tokenizer.json"));
  outrider_tokenizer* made = nullptr;
  EXPECT_EQ(outrider_tokenizer_new(rust::data(json), json.size(), &made, nullptr), OUTRIDER_TEXT_OK);
  return TokenizerHandle(made);
}

GrammarHandle grammars(const TokenizerHandle& tokenizer) {
  outrider_grammar_env* made = nullptr;
  rust::Bytes error;
  const std::int32_t end = outrider_tokenizer_id_of(tokenizer.get(), rust::data("<|im_end|>"), 10);
  EXPECT_EQ(outrider_grammar_env_new(tokenizer.get(), end, &made, error.out()), OUTRIDER_TEXT_OK) << error.text();
  return GrammarHandle(made);
}

TEST(RustAbi, PanicsBecomeCodesAndMessages) {
  rust::Bytes error;
  EXPECT_EQ(outrider_text_test_panic(error.out()), OUTRIDER_TEXT_PANIC);
  EXPECT_THAT(error.text(), HasSubstr("asked for by a test"));
  EXPECT_EQ(outrider_text_test_panic(nullptr), OUTRIDER_TEXT_PANIC);
  rust::Bytes again;
  const Error thrown = testing::error_of([&] { rust::check(outrider_text_test_panic(again.out()), again, "x"); });
  EXPECT_EQ(thrown.kind(), ErrorKind::runtime);
}

TEST(RustAbi, PanicsStayQuiet) {
  ::testing::internal::CaptureStderr();
  outrider_text_test_panic(nullptr);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(RustAbi, FreesAcceptNothing) {
  outrider_tokenizer_free(nullptr);
  outrider_template_free(nullptr);
  outrider_grammar_env_free(nullptr);
  outrider_bytes_free({nullptr, 0});
  outrider_ids_free({nullptr, 0});
}

TEST(RustAbi, EmptyInputsMayBeNull) {
  const TokenizerHandle tokenizer = tiny();
  outrider_ids ids{};
  EXPECT_EQ(outrider_tokenizer_encode(tokenizer.get(), nullptr, 0, 0, 1, &ids, nullptr), OUTRIDER_TEXT_OK);
  EXPECT_EQ(ids.size, 0u);
  outrider_ids_free(ids);
  rust::Bytes text;
  EXPECT_EQ(outrider_tokenizer_decode(tokenizer.get(), nullptr, 0, 0, text.out(), nullptr), OUTRIDER_TEXT_OK);
  EXPECT_EQ(text.text(), "");
  outrider_template* compiled = nullptr;
  EXPECT_EQ(outrider_template_new(nullptr, 0, &compiled, nullptr), OUTRIDER_TEXT_OK);
  outrider_template_free(compiled);
}

TEST(RustAbi, NothingLeaks) {
  const auto work = [] {
    const TokenizerHandle tokenizer = tiny();
    rust::Bytes error;
    outrider_ids ids{};
    EXPECT_EQ(outrider_tokenizer_encode(tokenizer.get(), rust::data("hello"), 5, 1, 1, &ids, nullptr),
              OUTRIDER_TEXT_OK);
    outrider_ids_free(ids);
    EXPECT_NE(outrider_tokenizer_encode(tokenizer.get(), rust::data("\xff"), 1, 1, 1, &ids, error.out()),
              OUTRIDER_TEXT_OK);
    const GrammarHandle grammar = grammars(tokenizer);
    EXPECT_EQ(outrider_grammar_check(grammar.get(), OUTRIDER_GRAMMAR_REGEX, rust::data("a+"), 2, nullptr), 0);
  };
  work();  // what is made once per process
  const std::size_t before = outrider_text_live_bytes();
  for (int i = 0; i < 3; ++i) work();
  // Caches of the libraries may still settle; a tokenizer left behind would be ten times this.
  EXPECT_LT(outrider_text_live_bytes(), before + 16384);
}

TEST(RustAbi, HeapBytesAreWhatFreeingReturns) {
  const std::size_t before = outrider_text_live_bytes();
  TokenizerHandle tokenizer = tiny();
  const std::size_t held = outrider_tokenizer_info(tokenizer.get()).heap_bytes;
  EXPECT_NEAR(static_cast<double>(outrider_text_live_bytes() - before), static_cast<double>(held), 0.05 * held);
  tokenizer.reset();
  EXPECT_LT(outrider_text_live_bytes(), before + held / 20);
}

TEST(RustAbi, AcceptsGrammarsThatCompile) {
  const TokenizerHandle tokenizer = tiny();
  const GrammarHandle environment = grammars(tokenizer);
  const std::pair<std::int32_t, std::string_view> good[] = {
      {OUTRIDER_GRAMMAR_JSON_SCHEMA, R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})"},
      {OUTRIDER_GRAMMAR_JSON_SCHEMA, "{}"},
      {OUTRIDER_GRAMMAR_LARK, "start: \"a\" b*\nb: /[0-9]+/ \",\""},
      {OUTRIDER_GRAMMAR_REGEX, "(yes|no)[.!]{0,3}"},
  };
  for (const auto& [kind, source] : good) {
    rust::Bytes error;
    EXPECT_EQ(outrider_grammar_check(environment.get(), kind, rust::data(source), source.size(), error.out()),
              OUTRIDER_TEXT_OK)
        << source << ": " << error.text();
  }
}

TEST(RustAbi, SaysWhyAGrammarDoesNotCompile) {
  const TokenizerHandle tokenizer = tiny();
  const GrammarHandle environment = grammars(tokenizer);
  const std::tuple<std::int32_t, std::string_view, const char*> bad[] = {
      {OUTRIDER_GRAMMAR_JSON_SCHEMA, "{", "not JSON"},
      {OUTRIDER_GRAMMAR_JSON_SCHEMA, R"({"type":"wrong"})", "wrong"},
      {OUTRIDER_GRAMMAR_JSON_SCHEMA, R"({"not":{"type":"string"}})", "not"},
      {OUTRIDER_GRAMMAR_LARK, "start: missing", "missing"},
      {OUTRIDER_GRAMMAR_LARK, "start: \"a", ""},
      {OUTRIDER_GRAMMAR_REGEX, "(a", ""},
      {OUTRIDER_GRAMMAR_REGEX, "\xff", "UTF-8"},
      {77, "x", "kind 77"},
  };
  for (const auto& [kind, source, says] : bad) {
    rust::Bytes error;
    EXPECT_EQ(outrider_grammar_check(environment.get(), kind, rust::data(source), source.size(), error.out()),
              OUTRIDER_TEXT_BAD_ARGUMENT)
        << source;
    EXPECT_THAT(error.text(), HasSubstr(says)) << source;
    EXPECT_NE(error.text(), "") << source;
  }
  outrider_grammar_env* made = nullptr;
  rust::Bytes error;
  EXPECT_EQ(outrider_grammar_env_new(tokenizer.get(), 1 << 20, &made, error.out()), OUTRIDER_TEXT_BAD_ARGUMENT);
  EXPECT_THAT(error.text(), HasSubstr("outside"));
}

}  // namespace
}  // namespace outrider
