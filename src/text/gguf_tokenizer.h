// A GGUF file's tokenizer metadata turned into tokenizer.json and tokenizer_config.json (models.md 1.11 "Tokenizer").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

// The `tokenizer.ggml.*` keys and `tokenizer.chat_template`, as read. The caller (which sees GGUF files) fills it.
struct GgufTokenizer {
  std::string model;  // "gpt2" (byte-level BPE) or "llama" (sentencepiece with scores)
  std::string pre;    // split pattern: smollm, llama-bpe, qwen2
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  std::vector<float> scores;
  std::vector<std::int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::optional<std::int64_t> bos_token_id, eos_token_id, eot_token_id, unknown_token_id, padding_token_id;
  std::optional<bool> add_bos_token, add_eos_token, add_space_prefix;
  std::string chat_template;
};

struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;  // bos/eos/pad/unk spellings, chat_template, add_bos_token
};

// Throws Error (data) that names the key, its value and what is accepted (unknown `pre`, counts that differ, ids out of
// range, token types out of range, merges that are not pairs of tokens, invalid UTF-8).
TokenizerFiles tokenizer_files_from_gguf(const GgufTokenizer& metadata);

}  // namespace outrider
