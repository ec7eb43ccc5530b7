// Reading config.json (models.md 1.2, 1.3): keys are looked up in text_config, then in the root; null counts as absent.
// Errors (data) name file, key, value and what is accepted.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace outrider {

// Borrows the document; `origin` names the file in messages.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& root, std::string origin);
  // The keys of one object inside the document (rope_scaling, ...), spelled "prefix.key" in messages.
  ConfigReader object(std::string_view key) const;

  bool has(std::string_view key) const { return find(key) != nullptr; }
  // The value, or nullptr if absent or null.
  const nlohmann::json* find(std::string_view key) const;

  // Widths and counts: an integer in [low, high]. Without a default the key is required.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high, std::int64_t fallback) const;
  // > 0 and < 2^24 (models.md 1.2.7).
  std::int64_t dimension(std::string_view key) const { return integer(key, 1, kMaxDimension); }
  std::int64_t dimension(std::string_view key, std::int64_t fallback) const {
    return integer(key, 1, kMaxDimension, fallback);
  }
  // A finite number in [low, high].
  double number(std::string_view key, double low, double high) const;
  double number(std::string_view key, double low, double high, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::vector<double> numbers(std::string_view key) const;     // required array of finite numbers
  std::vector<std::string> texts(std::string_view key) const;  // required array of strings

  // "config.json: key is value (accepted: ...)".
  Error refuse(std::string_view key, std::string_view accepted,
               std::string hint = "take a model or a copy with an accepted value") const;

  static constexpr std::int64_t kMaxDimension = (1 << 24) - 1;

 private:
  ConfigReader(const nlohmann::json* text, const nlohmann::json* root, std::string origin, std::string prefix);
  const nlohmann::json& required(std::string_view key, std::string_view accepted) const;

  const nlohmann::json* text_ = nullptr;  // text_config, or the same as root_
  const nlohmann::json* root_ = nullptr;
  std::string origin_;
  std::string prefix_;
};

// Stop ids (models.md 1.3): generation_config.eos_token_id, else config's (root, then text), united with the
// ids the tokenizer names (tokenizer_config's eos_token, GGUF's eos and eot). Sorted, distinct. Ids outside [0, vocab)
// : Error (data). A generation_config key of the wrong type is warned of and ignored; `generation` may be null.
std::vector<std::int32_t> stop_ids(const nlohmann::json& config, const nlohmann::json& generation,
                                   std::span<const std::int32_t> tokenizer_eos, std::int64_t vocab);

}  // namespace outrider
