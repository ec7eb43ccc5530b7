#include "text/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "text/utf8.h"

namespace outrider {

namespace {

enum TokenType : std::int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, a space in sentencepiece vocabularies

// What a value of `tokenizer.ggml.pre` stands for: the pre-tokenizer and what goes with it in the original files.
struct SplitPattern {
  std::string_view name;
  std::string_view normalizer;     // JSON
  std::string_view pre_tokenizer;  // JSON
  bool whole_words_first;          // a piece of text that is a token is not merged from its parts
  bool adds_bos;                   // unless the file says otherwise
};

// R"" strings hold JSON, so a backslash of the regular expression is doubled.
constexpr std::array<SplitPattern, 3> kSplitPatterns{{
    {"smollm", "null",
     R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},)"
     R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]})",
     false, false},
    {"llama-bpe", "null",
     R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
     R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|)"
     R"(\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},)"
     R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})",
     true, true},
    {"qwen2", R"({"type":"NFC"})",
     R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
     R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|)"
     R"(\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},)"
     R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]})",
     false, false},
}};

[[noreturn]] void refuse(const std::string& fact,
                         std::string hint = "the file is damaged or incomplete: take another copy") {
  throw Error(ErrorKind::data, "tokenizer metadata: " + fact, std::move(hint));
}

// A string of the file inside a message: short, and free of control characters.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 60)) {
    out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F
               ? fmt::format("\\x{:02x}", c & 0xFF)
               : std::string(1, c);
  }
  return text.size() > 60 ? out + "..." : out;
}

std::string json_string(std::string_view text) { return nlohmann::json(text).dump(); }

// The metadata after all checks, with what both kinds of model need.
class Converter {
 public:
  explicit Converter(const GgufTokenizer& metadata) : metadata_(metadata), tokens_(metadata.tokens) {}

  TokenizerFiles convert() {
    check_tokens();
    check_ids();
    std::string model;
    std::string_view normalizer = "null";
    std::string_view pre_tokenizer = "null";
    std::string_view decoder;
    if (metadata_.model == "gpt2") {
      const SplitPattern& pattern = split_pattern();
      normalizer = pattern.normalizer;
      pre_tokenizer = pattern.pre_tokenizer;
      adds_bos_ = metadata_.add_bos_token.value_or(pattern.adds_bos);
      decoder = R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";
      model = byte_level_model(pattern);
    } else if (metadata_.model == "llama") {
      normalizer = metadata_.add_space_prefix.value_or(true)
                       ? R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},)"
                         R"({"type":"Replace","pattern":{"String":" "},"content":"▁"}]})"
                       : R"({"type":"Replace","pattern":{"String":" "},"content":"▁"})";
      adds_bos_ = metadata_.add_bos_token.value_or(true);
      decoder = metadata_.add_space_prefix.value_or(true)
                    ? R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},)"
                      R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})"
                    : R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},)"
                      R"({"type":"ByteFallback"},{"type":"Fuse"}]})";
      model = sentencepiece_model();
    } else {
      refuse(
          fmt::format("tokenizer.ggml.model is \"{}\"; \"gpt2\" and \"llama\" are supported", shown(metadata_.model)));
    }
    adds_eos_ = metadata_.add_eos_token.value_or(false);
    if (adds_bos_ && !metadata_.bos_token_id) {
      if (metadata_.add_bos_token) refuse("add_bos_token is true, but there is no bos_token_id");
      adds_bos_ = false;
    }
    if (adds_eos_ && !metadata_.eos_token_id) refuse("add_eos_token is true, but there is no eos_token_id");
    TokenizerFiles files;
    files.tokenizer_json = fmt::format(
        R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":{},"normalizer":{},"pre_tokenizer":{},)"
        R"("post_processor":{},"decoder":{},"model":{}}})",
        added_tokens(), normalizer, pre_tokenizer, post_processor(), decoder, model);
    files.tokenizer_config_json = config();
    return files;
  }

 private:
  TokenType type_of(std::size_t id) const {
    return metadata_.token_types.empty() ? kNormal : static_cast<TokenType>(metadata_.token_types[id]);
  }

  void check_tokens() {
    const std::size_t count = metadata_.tokens.size();
    if (count == 0) refuse("tokenizer.ggml.tokens is empty or absent");
    if (!metadata_.token_types.empty() && metadata_.token_types.size() != count) {
      refuse(fmt::format("token_type has {} entries, tokens has {}", metadata_.token_types.size(), count));
    }
    if (!metadata_.scores.empty() && metadata_.scores.size() != count) {
      refuse(fmt::format("scores has {} entries, tokens has {}", metadata_.scores.size(), count));
    }
    for (std::size_t id = 0; id < count; ++id) {
      if (!metadata_.token_types.empty() &&
          (metadata_.token_types[id] < kNormal || metadata_.token_types[id] > kByte)) {
        refuse(fmt::format("token_type of token {} is {}; 1 to 6 are known", id, metadata_.token_types[id]));
      }
      if (metadata_.tokens[id].empty()) refuse(fmt::format("token {} is empty", id));
      if (const auto fault = utf8_fault(metadata_.tokens[id]); fault != std::string::npos) {
        refuse(fmt::format("token {} is not UTF-8: invalid byte at offset {}", id, fault));
      }
    }
    // Padding to a round number of rows: ids that no text has and no answer may hold.
    kept_ = count;
    while (kept_ > 0 && type_of(kept_ - 1) == kUnused) --kept_;
    ids_.reserve(kept_);
    for (std::size_t id = 0; id < kept_; ++id) {
      if (metadata_.model == "llama" && type_of(id) == kUserDefined) {
        // Matched in the text as it came, where a space is a space.
        std::string& token = tokens_[id];
        for (std::size_t at = 0; (at = token.find(kMetaspace, at)) != std::string::npos;) {
          token.replace(at++, kMetaspace.size(), " ");
        }
      }
      const auto [known, is_new] = ids_.emplace(tokens_[id], static_cast<std::int32_t>(id));
      if (!is_new) refuse(fmt::format("tokens {} and {} are both \"{}\"", known->second, id, shown(tokens_[id])));
    }
  }

  void check_ids() const {
    const std::pair<const char*, std::optional<std::int64_t>> ids[] = {
        {"bos_token_id", metadata_.bos_token_id},         {"eos_token_id", metadata_.eos_token_id},
        {"eot_token_id", metadata_.eot_token_id},         {"unknown_token_id", metadata_.unknown_token_id},
        {"padding_token_id", metadata_.padding_token_id},
    };
    for (const auto& [key, id] : ids) {
      if (id && (*id < 0 || static_cast<std::uint64_t>(*id) >= metadata_.tokens.size())) {
        refuse(fmt::format("tokenizer.ggml.{} is {}; there are {} tokens", key, *id, metadata_.tokens.size()));
      }
      // Text is never padded, so the padding token may be one of the unused.
      if (id && static_cast<std::uint64_t>(*id) >= kept_ && key != std::string_view("padding_token_id")) {
        refuse(fmt::format("tokenizer.ggml.{} is {}, which token_type calls unused", key, *id));
      }
    }
    if (!metadata_.chat_template.empty()) {
      if (const auto fault = utf8_fault(metadata_.chat_template); fault != std::string::npos) {
        refuse(fmt::format("tokenizer.chat_template is not UTF-8: invalid byte at offset {}", fault));
      }
    }
  }

  const SplitPattern& split_pattern() const {
    std::string names;
    for (const SplitPattern& pattern : kSplitPatterns) {
      if (pattern.name == metadata_.pre) return pattern;
      names += (names.empty() ? "" : ", ") + std::string(pattern.name);
    }
    refuse(metadata_.pre.empty()
               ? fmt::format("tokenizer.ggml.pre is absent; one of {} is needed", names)
               : fmt::format("tokenizer.ggml.pre is \"{}\"; {} are supported", shown(metadata_.pre), names),
           "use the model's safetensors directory with its tokenizer.json");
  }

  std::string vocabulary() const {
    std::string json = "{";
    for (std::size_t id = 0; id < kept_; ++id) {
      json += id == 0 ? "" : ",";
      json += json_string(tokens_[id]);
      json += ':';
      json += std::to_string(id);
    }
    return json + "}";
  }

  std::string byte_level_model(const SplitPattern& pattern) const {
    if (metadata_.merges.empty()) refuse("tokenizer.ggml.merges is empty or absent");
    std::string merges;
    for (std::size_t i = 0; i < metadata_.merges.size(); ++i) {
      const std::string& merge = metadata_.merges[i];
      const std::size_t space = merge.find(' ');
      if (space == std::string::npos || space == 0 || space + 1 == merge.size() ||
          merge.find(' ', space + 1) != std::string::npos) {
        refuse(fmt::format("merge {} is \"{}\"; two tokens with one space between them are needed", i, shown(merge)));
      }
      const std::string left = merge.substr(0, space);
      const std::string right = merge.substr(space + 1);
      for (const std::string& part : {left, right, left + right}) {
        if (!ids_.contains(part)) {
          refuse(fmt::format("merge {} is \"{}\", but \"{}\" is not a token", i, shown(merge), shown(part)));
        }
      }
      append_merge(merges, left, right);
    }
    return fmt::format(
        R"({{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
        R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":{},"vocab":{},"merges":[{}]}})",
        pattern.whole_words_first, vocabulary(), merges);
  }

  static void append_merge(std::string& merges, std::string_view left, std::string_view right) {
    merges += merges.empty() ? "[" : ",[";
    merges += json_string(left);
    merges += ',';
    merges += json_string(right);
    merges += ']';
  }

  // Sentencepiece merges the neighbours whose union has the best score; BPE the pair that comes first in its list. So
  // the list is every way to split every token into two, by descending score.
  std::string sentencepiece_model() const {
    if (metadata_.scores.empty()) refuse("tokenizer.ggml.scores is absent; sentencepiece vocabularies need it");
    struct Merge {
      float score;
      std::size_t id;
      std::string_view left, right;
    };
    std::vector<Merge> found;
    for (std::size_t id = 0; id < kept_; ++id) {
      if (!std::isfinite(metadata_.scores[id])) refuse(fmt::format("score of token {} is not finite", id));
      if (type_of(id) == kByte) check_byte(id);
      if (type_of(id) != kNormal) continue;
      const std::string_view token = tokens_[id];
      for (std::size_t cut = utf8_step(token).size; cut < token.size(); cut += utf8_step(token.substr(cut)).size) {
        if (is_mergeable(token.substr(0, cut)) && is_mergeable(token.substr(cut))) {
          found.push_back({metadata_.scores[id], id, token.substr(0, cut), token.substr(cut)});
        }
      }
    }
    // Among splits of one token the longest left part first: what leftmost-first merging leaves on the left is never
    // shorter than its right neighbour in a run of equal characters.
    std::sort(found.begin(), found.end(), [](const Merge& a, const Merge& b) {
      if (a.score != b.score) return a.score > b.score;
      return a.left.size() != b.left.size() ? a.left.size() > b.left.size() : a.id < b.id;
    });
    std::string merges;
    for (const Merge& merge : found) append_merge(merges, merge.left, merge.right);
    return fmt::format(
        R"({{"type":"BPE","dropout":null,"unk_token":{},"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
        R"("fuse_unk":true,"byte_fallback":true,"ignore_merges":false,"vocab":{},"merges":[{}]}})",
        metadata_.unknown_token_id ? json_string(token_at(*metadata_.unknown_token_id)) : "null", vocabulary(), merges);
  }

  bool is_mergeable(std::string_view part) const {
    const auto found = ids_.find(part);
    return found != ids_.end() && type_of(static_cast<std::size_t>(found->second)) == kNormal;
  }

  void check_byte(std::size_t id) const {
    const std::string& token = tokens_[id];
    const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>' || !is_hex(token[3]) || !is_hex(token[4])) {
      refuse(fmt::format("token {} has type 6 (byte) but is \"{}\", not <0x00> to <0xFF>", id, shown(token)));
    }
  }

  const std::string& token_at(std::int64_t id) const { return tokens_[static_cast<std::size_t>(id)]; }

  std::string added_tokens() const {
    std::string json = "[";
    for (std::size_t id = 0; id < kept_; ++id) {
      const TokenType type = type_of(id);
      const bool is_special = type == kControl || type == kUnknown || is_marker_without_types(id);
      if (!is_special && type != kUserDefined) continue;
      json += json.size() == 1 ? "" : ",";
      json += fmt::format(
          R"({{"id":{},"content":{},"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":{}}})",
          id, json_string(tokens_[id]), is_special);
    }
    return json + "]";
  }

  // Files without token types still say which tokens begin and end texts.
  bool is_marker_without_types(std::size_t id) const {
    const auto is = [&](const std::optional<std::int64_t>& key) {
      return key && *key == static_cast<std::int64_t>(id);
    };
    return metadata_.token_types.empty() &&
           (is(metadata_.bos_token_id) || is(metadata_.eos_token_id) || is(metadata_.eot_token_id));
  }

  std::string post_processor() const {
    if (!adds_bos_ && !adds_eos_) return "null";
    nlohmann::json single = nlohmann::json::array();
    nlohmann::json tokens = nlohmann::json::object();
    const auto add = [&](std::int64_t id) {
      const std::string& token = token_at(id);
      single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
      tokens[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
    };
    if (adds_bos_) add(*metadata_.bos_token_id);
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (adds_eos_) add(*metadata_.eos_token_id);
    nlohmann::json pair = single;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    return nlohmann::json{
        {"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}}
        .dump();
  }

  std::string config() const {
    nlohmann::ordered_json config = nlohmann::ordered_json::object();
    const auto name = [&](const char* key, const std::optional<std::int64_t>& id) {
      if (id) config[key] = metadata_.tokens[static_cast<std::size_t>(*id)];
    };
    name("bos_token", metadata_.bos_token_id);
    name("eos_token", metadata_.eos_token_id);
    name("eot_token", metadata_.eot_token_id);
    name("unk_token", metadata_.unknown_token_id);
    name("pad_token", metadata_.padding_token_id);
    config["add_bos_token"] = adds_bos_;
    config["add_eos_token"] = adds_eos_;
    if (!metadata_.chat_template.empty()) config["chat_template"] = metadata_.chat_template;
    return config.dump(1);
  }

  const GgufTokenizer& metadata_;
  std::vector<std::string> tokens_;  // spellings in the tokenizer.json
  std::size_t kept_ = 0;             // tokens without the padding at the end
  std::unordered_map<std::string_view, std::int32_t> ids_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
};

}  // namespace

TokenizerFiles tokenizer_files_from_gguf(const GgufTokenizer& metadata) { return Converter(metadata).convert(); }

}  // namespace outrider
