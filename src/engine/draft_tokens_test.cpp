#include "engine/draft_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace outrider {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(DraftTokens, AreAsManyAsAskedForRankedOrUsual) {
  EXPECT_EQ(draft_token_count(std::nullopt, 250000, 0), kUsualDraftTokens);
  EXPECT_EQ(draft_token_count(std::nullopt, kLargeVocabulary, 0), 0);  // a small head is read as a whole
  EXPECT_EQ(draft_token_count(std::nullopt, 5000, 300), 300);
  EXPECT_EQ(draft_token_count(100, 250000, 300), 100);
  EXPECT_EQ(draft_token_count(0, 250000, 300), 0);
  EXPECT_EQ(draft_token_count(5000, 5000, 0), 0);  // all of them are no subset
}

TEST(DraftTokens, HoldWhatMustNotBeMissingThenTheRankedThenTheFirst) {
  const Ids indispensable = {2, 50, 200}, ends = {50, 90}, ranking = {70, 2, 30, 10};
  EXPECT_EQ(draft_tokens(5, 100, indispensable, ends, ranking), (Ids{2, 30, 50, 70, 90}));
  EXPECT_EQ(draft_tokens(8, 100, indispensable, ends, ranking), (Ids{0, 1, 2, 10, 30, 50, 70, 90}));
  EXPECT_EQ(draft_tokens(3, 100, indispensable, ends, ranking), (Ids{2, 50, 90}));
  try {
    draft_tokens(2, 100, indispensable, ends, ranking);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("a draft vocabulary of 2 tokens, 3 must be in it"));
    EXPECT_THAT(error.hint(), testing::HasSubstr("--draft-vocab 3 or more"));
  }
}

TEST(DraftTokens, AreRankedByFrequencyThenById) {
  const Ids text = {4, 4, 4, 1, 9, 9, 7, 1, 12};
  EXPECT_EQ(ranked_by_frequency(text, 10, 5), (Ids{4, 1, 9, 7, 0}));
  EXPECT_EQ(ranked_by_frequency({}, 4, 9), (Ids{0, 1, 2, 3}));
}

TEST(DraftTokens, OfATokenizerHoldItsMarkersAndSingleBytes) {
  // The end of text is special, <think> is not; "t" and "h" are single bytes, "th" and "<" + "x" are neither.
  const Tokenizer tokenizer = Tokenizer::from_json(R"({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
    "added_tokens": [
      {"id": 4, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
       "special": true},
      {"id": 5, "content": "<think>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
       "special": false}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
              "vocab": {"t": 0, "h": 1, "th": 2, "Ġ": 3}, "merges": ["t h"]}})",
                                                   "test");
  EXPECT_EQ(indispensable_tokens(tokenizer), (Ids{0, 1, 3, 4, 5}));
}

}  // namespace
}  // namespace outrider
