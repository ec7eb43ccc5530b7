// For tests: GGUF tokenizer metadata from a real file, and from a tokenizer.json as converters write it.
#pragma once

#include <cstring>
#include <map>
#include <set>

#include "text/gguf_tokenizer.h"
#include "text/test_data.h"

namespace outrider::testing {

// Reads just the `tokenizer.*` keys of a trusted GGUF file (the product's own reader is in weights/, which this room
// does not see).
class MiniGguf {
 public:
  explicit MiniGguf(const std::filesystem::path& path) : stream_(path, std::ios::binary) {
    char magic[8];
    stream_.read(magic, 8);
    read<std::uint64_t>();
    const auto count = read<std::uint64_t>();
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string key = text();
      value(key, read<std::uint32_t>());
    }
  }

  GgufTokenizer tokenizer() {
    const auto id = [&](const char* key) {
      const auto found = integers_.find(std::string("tokenizer.ggml.") + key);
      return found == integers_.end() ? std::optional<std::int64_t>()
                                      : std::optional<std::int64_t>(found->second.at(0));
    };
    const auto flag = [&](const char* key) {
      const auto value = id(key);
      return value ? std::optional<bool>(*value != 0) : std::optional<bool>();
    };
    GgufTokenizer metadata;
    metadata.model = texts_["tokenizer.ggml.model"].at(0);
    metadata.pre = texts_["tokenizer.ggml.pre"].at(0);
    metadata.tokens = texts_["tokenizer.ggml.tokens"];
    metadata.merges = texts_["tokenizer.ggml.merges"];
    for (const auto type : integers_["tokenizer.ggml.token_type"]) {
      metadata.token_types.push_back(static_cast<std::int32_t>(type));
    }
    metadata.bos_token_id = id("bos_token_id");
    metadata.eos_token_id = id("eos_token_id");
    metadata.unknown_token_id = id("unknown_token_id");
    metadata.padding_token_id = id("padding_token_id");
    metadata.add_bos_token = flag("add_bos_token");
    metadata.add_space_prefix = flag("add_space_prefix");
    metadata.chat_template = texts_["tokenizer.chat_template"].at(0);
    return metadata;
  }

 private:
  template <class T>
  T read() {
    T value{};
    stream_.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string text() {
    std::string value(read<std::uint64_t>(), '\0');
    stream_.read(value.data(), static_cast<std::streamsize>(value.size()));
    return value;
  }
  void value(const std::string& key, std::uint32_t type) {
    switch (type) {
      case 0:
      case 7:
        integers_[key].push_back(read<std::uint8_t>());
        break;
      case 1:
        integers_[key].push_back(read<std::int8_t>());
        break;
      case 2:
      case 3:
        integers_[key].push_back(read<std::int16_t>());
        break;
      case 4:
        integers_[key].push_back(read<std::uint32_t>());
        break;
      case 5:
        integers_[key].push_back(read<std::int32_t>());
        break;
      case 6:
        read<float>();
        break;
      case 8:
        texts_[key].push_back(text());
        break;
      case 9: {
        const auto item = read<std::uint32_t>();
        const auto count = read<std::uint64_t>();
        for (std::uint64_t i = 0; i < count; ++i) value(key, item);
        break;
      }
      default:
        read<std::uint64_t>();
    }
  }

  std::ifstream stream_;
  std::map<std::string, std::vector<std::int64_t>> integers_;
  std::map<std::string, std::vector<std::string>> texts_;
};

// As a converter to GGUF writes this tokenizer.json: one list of tokens with types; sentencepiece vocabularies with
// scores instead of merges (the rank of the first merge that makes a piece).
inline GgufTokenizer gguf_of(const nlohmann::json& tokenizer, const std::string& model, const std::string& pre) {
  GgufTokenizer metadata;
  metadata.model = model;
  metadata.pre = pre;
  const auto put = [&](std::size_t id, const std::string& token, std::int32_t type) {
    if (metadata.tokens.size() <= id) {
      metadata.tokens.resize(id + 1);
      metadata.token_types.resize(id + 1, 1);
    }
    metadata.tokens[id] = token;
    metadata.token_types[id] = type;
  };
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) {
    const bool is_byte = model == "llama" && token.size() == 6 && token.starts_with("<0x");
    put(id.get<std::size_t>(), token, is_byte ? 6 : 1);
  }
  for (const auto& added : tokenizer["added_tokens"]) {
    const bool is_unknown = model == "llama" && added["content"] == "<unk>";
    put(added["id"].get<std::size_t>(), added["content"], is_unknown ? 2 : added["special"].get<bool>() ? 3 : 4);
    if (is_unknown) metadata.unknown_token_id = added["id"].get<std::int64_t>();
  }
  std::map<std::string, float> scores;
  for (const auto& merge : tokenizer["model"]["merges"]) {
    const std::string joined =
        merge.is_string() ? merge.get<std::string>() : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    if (model == "gpt2") {
      metadata.merges.push_back(joined);
    } else {
      const std::size_t space = joined.find(' ');
      scores.emplace(joined.substr(0, space) + joined.substr(space + 1), -static_cast<float>(scores.size()));
    }
  }
  if (model == "llama") {
    metadata.scores.assign(metadata.tokens.size(), -1e9f);
    for (std::size_t id = 0; id < metadata.tokens.size(); ++id) {
      if (const auto found = scores.find(metadata.tokens[id]); found != scores.end())
        metadata.scores[id] = found->second;
    }
  }
  return metadata;
}

}  // namespace outrider::testing
