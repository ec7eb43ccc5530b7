// For tests: one golden file of make_goldens.py against one tokenizer.
#pragma once

#include <algorithm>

#include "text/test_data.h"
#include "text/text_stream.h"

namespace outrider::testing {

inline std::string streamed(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, SkipSpecial skip) {
  TextStream stream(tokenizer, skip);
  std::string text;
  for (const std::int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

// Ids, decoded text and streamed text of every nasty string and of random ids, as the Python package gives them.
inline void expect_golden(const Tokenizer& tokenizer, const std::string& family) {
  const auto expected = golden("tokenizer_" + family + ".json");
  EXPECT_EQ(tokenizer.size(), expected["size"].get<std::int32_t>());
  const std::vector<std::string> strings = nasty_strings();
  ASSERT_EQ(strings.size(), expected["strings"].size());
  ASSERT_GE(strings.size(), 200u);
  for (std::size_t i = 0; i < strings.size(); ++i) {
    SCOPED_TRACE(nlohmann::json(strings[i]).dump(-1, ' ', true));
    const auto& row = expected["strings"][i];
    const auto plain = tokenizer.encode(strings[i], AddSpecial::no, ParseSpecial::yes);
    const auto special = tokenizer.encode(strings[i], AddSpecial::yes, ParseSpecial::yes);
    const auto spelled = tokenizer.encode(strings[i], AddSpecial::no, ParseSpecial::no);
    EXPECT_EQ(plain.size(), row[0].get<std::size_t>());
    EXPECT_EQ(hash_of(plain), row[1].get<std::string>());
    EXPECT_EQ(hash_of(special), row[2].get<std::string>());
    EXPECT_EQ(hash_of(spelled), row[3].get<std::string>());
    if (row.size() > 6) {
      EXPECT_EQ(plain, row[6].get<std::vector<std::int32_t>>());
    }
    for (const SkipSpecial skip : {SkipSpecial::no, SkipSpecial::yes}) {
      const std::string text = tokenizer.decode(special, skip);
      EXPECT_EQ(fnv(text), row[skip == SkipSpecial::yes ? 5 : 4].get<std::string>()) << text;
      EXPECT_EQ(streamed(tokenizer, special, skip), text);
    }
  }
  const auto sequences = random_ids(tokenizer.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    for (const SkipSpecial skip : {SkipSpecial::no, SkipSpecial::yes}) {
      const std::string text = tokenizer.decode(sequences[i], skip);
      EXPECT_EQ(fnv(text), expected["random"][i][skip == SkipSpecial::yes ? 1 : 0].get<std::string>());
      EXPECT_EQ(streamed(tokenizer, sequences[i], skip), text);
    }
  }
}

}  // namespace outrider::testing
