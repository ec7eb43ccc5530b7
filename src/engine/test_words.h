// Test support: a byte-level tokenizer of a few words; the bytes of U+00E9 are two tokens.
#pragma once

#include "text/tokenizer.h"

namespace outrider {

inline const Tokenizer& words() {
  static const Tokenizer tokenizer = Tokenizer::from_json(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
          "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false},
          "post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
          "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
          "fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
          "vocab":{"a":0,"b":1,"c":2,"ab":3,"bc":4,"Ã":5,"©":6,"d":7},"merges":["a b","b c"]}})",
      "test tokenizer");
  return tokenizer;
}

}  // namespace outrider
