// Everything a model says about text: its tokenizer, chat template and marker tokens (models.md 1.1, 1.3).
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/gguf_tokenizer.h"
#include "text/tokenizer.h"

namespace outrider {

struct ModelText {
  Tokenizer tokenizer;
  // None if the model has none, or if it does not compile: then `chat_template_fault` says why (logged once, since
  // the model still runs without it).
  std::optional<ChatTemplate> chat_template;
  std::string chat_template_source;
  std::string chat_template_fault;
  // Spellings; empty if the model names none.
  std::string bos_token, eos_token, pad_token, unk_token;
  // Ids of tokenizer_config's eos_token (and GGUF's eot_token): the tokenizer's part of the stop ids of models.md 1.3.
  std::vector<std::int32_t> tokenizer_eos_ids;
  nlohmann::json tokenizer_config;

  // The variables transformers gives every template beside the messages: the named special tokens.
  nlohmann::ordered_json special_tokens() const;
  // Template context = special tokens, then `variables` {messages, tools?, ...}, which win. Error (usage) if the
  // template cannot render them, Error (data) if the model has no usable template.
  std::string render_chat(const nlohmann::ordered_json& variables, GenerationPrompt generation_prompt) const;
};

// Reads tokenizer.json (required), tokenizer_config.json and chat_template.jinja (optional; the latter wins over the
// former's chat_template, of whose named templates "default" is taken). Error (data) names the file and the fault.
ModelText load_model_text(const std::filesystem::path& model_directory);

// The same from texts: what a GGUF file's metadata gives. `origin` names it in messages.
ModelText model_text_from_files(const TokenizerFiles& files, std::string_view origin);

}  // namespace outrider
