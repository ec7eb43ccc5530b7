#include "text/chat_template.h"

#include <nlohmann/json.hpp>

#include "text/rust_call.h"

namespace outrider {

using Json = nlohmann::ordered_json;

struct ChatTemplate::Handle {
  struct Free {
    void operator()(outrider_template* compiled) const { outrider_template_free(compiled); }
  };
  std::unique_ptr<outrider_template, Free> compiled;
};

namespace {

// Names a message's reasoning goes by; the first is the one most templates read, the second is gpt-oss's.
constexpr const char* kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

// What transformers' apply_chat_template does to every message: keys with a null value are dropped, and reasoning is
// offered under the names that templates read.
Json normalized_message(const Json& message) {
  Json kept = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) kept.push_back({key, value});
  }
  for (const char* field : kReasoningFields) {
    const auto reasoning = kept.find(field);
    if (reasoning == kept.end()) continue;
    const Json value = *reasoning;
    Json with_alias = Json::object();
    with_alias.push_back({"thinking", kept.contains("thinking") ? kept["thinking"] : value});
    for (const auto& [key, item] : kept.items()) {
      if (key != "thinking") with_alias.push_back({key, item});
    }
    with_alias["reasoning_content"] = value;
    return with_alias;
  }
  return kept;
}

Json normalized_messages(const Json& messages) {
  if (!messages.is_array()) throw Error(ErrorKind::usage, "chat template: `messages` is not an array");
  if (messages.empty()) throw Error(ErrorKind::usage, "chat template: `messages` is empty, at least one is needed");
  Json normalized = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) {
      throw Error(ErrorKind::usage, fmt::format("chat template: message {} is not an object", i));
    }
    normalized.push_back(normalized_message(messages[i]));
  }
  return normalized;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source) : handle_(std::make_unique<Handle>()) {
  rust::Bytes error;
  outrider_template* compiled = nullptr;
  rust::check(outrider_template_new(rust::data(source), source.size(), &compiled, error.out()), error, "chat template");
  handle_->compiled.reset(compiled);
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(const Json& context, GenerationPrompt generation_prompt) const {
  if (!context.is_object()) throw Error(ErrorKind::usage, "chat template: the context is not an object");
  // transformers always defines these two; templates tell "none" and "undefined" apart.
  Json full = Json::object();
  full["messages"] = nullptr;
  full["tools"] = nullptr;
  full["documents"] = nullptr;
  full.update(context);
  if (context.contains("messages")) full["messages"] = normalized_messages(context["messages"]);
  full["add_generation_prompt"] = generation_prompt == GenerationPrompt::yes;
  std::string text;
  try {
    text = full.dump();
  } catch (const Json::exception& fault) {
    throw Error(ErrorKind::usage, fmt::format("chat template: the context is not UTF-8 ({})", fault.what()));
  }
  rust::Bytes error;
  rust::Bytes rendered;
  rust::check(
      outrider_template_render(handle_->compiled.get(), rust::data(text), text.size(), rendered.out(), error.out()),
      error, "chat template");
  return rendered.text();
}

}  // namespace outrider
