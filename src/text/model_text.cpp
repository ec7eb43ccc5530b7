#include "text/model_text.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text_file.h"

namespace outrider {

using nlohmann::json;

namespace {

// Far above any real file (chat templates of 20 KB, added token lists of 200 KB).
constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

constexpr const char* kCorrectFile = "correct it there, or get the file anew";

// The attributes transformers hands to templates by name.
constexpr const char* kSpecialTokenKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                             "pad_token", "cls_token", "mask_token"};

json parsed_config(const std::string& text, std::string_view origin) {
  json config;
  try {
    config = json::parse(text);
  } catch (const json::exception& fault) {
    throw Error(ErrorKind::data, fmt::format("{}: {}", origin, fault.what()), kCorrectFile);
  }
  if (!config.is_object()) throw Error(ErrorKind::data, fmt::format("{}: not a JSON object", origin), kCorrectFile);
  return config;
}

// A token is its spelling, or an object with the spelling as `content`, or null.
std::string spelling(const json& config, const char* key, std::string_view origin) {
  const auto entry = config.find(key);
  if (entry == config.end() || entry->is_null()) return {};
  if (entry->is_string()) return entry->get<std::string>();
  if (entry->is_object() && entry->contains("content") && entry->at("content").is_string()) {
    return entry->at("content").get<std::string>();
  }
  throw Error(
      ErrorKind::data,
      fmt::format("{}: {} is {}; a string or an object with `content` is needed", origin, key, entry->type_name()),
      kCorrectFile);
}

// `chat_template` is one template or a list of {name, template}.
std::string template_of(const json& config, std::string_view origin) {
  const auto entry = config.find("chat_template");
  if (entry == config.end() || entry->is_null()) return {};
  if (entry->is_string()) return entry->get<std::string>();
  std::string names;
  if (entry->is_array()) {
    for (const json& item : *entry) {
      const bool named = item.is_object() && item.contains("name") && item.at("name").is_string() &&
                         item.contains("template") && item.at("template").is_string();
      if (!named) {
        throw Error(ErrorKind::data, fmt::format("{}: an entry of chat_template lacks name or template", origin),
                    kCorrectFile);
      }
      if (item.at("name") == "default") return item.at("template").get<std::string>();
      names += (names.empty() ? "" : ", ") + item.at("name").get<std::string>();
    }
    log(LogLevel::warning, "{}: chat_template has no entry named default (it has: {}); no template is used", origin,
        names.empty() ? "none" : names);
    return {};
  }
  throw Error(ErrorKind::data,
              fmt::format("{}: chat_template is {}; a string or a list is needed", origin, entry->type_name()),
              kCorrectFile);
}

ModelText assemble(Tokenizer tokenizer, json config, std::optional<std::string> template_file,
                   std::string_view origin) {
  ModelText text{.tokenizer = std::move(tokenizer),
                 .chat_template = std::nullopt,
                 .chat_template_source = template_file ? std::move(*template_file) : template_of(config, origin),
                 .chat_template_fault = {},
                 .bos_token = spelling(config, "bos_token", origin),
                 .eos_token = spelling(config, "eos_token", origin),
                 .pad_token = spelling(config, "pad_token", origin),
                 .unk_token = spelling(config, "unk_token", origin),
                 .tokenizer_eos_ids = {},
                 .tokenizer_config = std::move(config)};
  for (const std::string& token : {text.eos_token, spelling(text.tokenizer_config, "eot_token", origin)}) {
    if (token.empty()) continue;
    const std::int32_t id = text.tokenizer.id_of(token);
    if (id < 0) {
      log(LogLevel::warning, "{}: the end token \"{}\" is not in the vocabulary; it is ignored", origin, token);
    } else if (text.tokenizer_eos_ids.empty() || text.tokenizer_eos_ids.back() != id) {
      text.tokenizer_eos_ids.push_back(id);
    }
  }
  if (!text.chat_template_source.empty()) {
    try {
      text.chat_template.emplace(text.chat_template_source);
    } catch (const Error& fault) {
      text.chat_template_fault = fault.what();
      log(LogLevel::warning, "{}: {}", origin, fault.what());
    }
  }
  return text;
}

}  // namespace

nlohmann::ordered_json ModelText::special_tokens() const {
  nlohmann::ordered_json tokens = nlohmann::ordered_json::object();
  for (const char* key : kSpecialTokenKeys) {
    if (const std::string token = spelling(tokenizer_config, key, "tokenizer_config.json"); !token.empty()) {
      tokens[key] = token;
    }
  }
  return tokens;
}

std::string ModelText::render_chat(const nlohmann::ordered_json& variables, GenerationPrompt generation_prompt) const {
  if (!chat_template) {
    throw Error(ErrorKind::data, chat_template_fault.empty() ? "the model has no chat template" : chat_template_fault,
                "give the prompt as plain text, without the chat template");
  }
  nlohmann::ordered_json context = special_tokens();
  context.update(variables);
  return chat_template->render(context, generation_prompt);
}

ModelText load_model_text(const std::filesystem::path& model_directory) {
  const auto config_path = model_directory / "tokenizer_config.json";
  const auto template_path = model_directory / "chat_template.jinja";
  Tokenizer tokenizer = Tokenizer::from_file(model_directory / "tokenizer.json");
  json config = json::object();
  if (std::filesystem::exists(config_path)) {
    config = parsed_config(read_text_file(config_path, kMaxConfigBytes), config_path.string());
  }
  std::optional<std::string> template_file;
  if (std::filesystem::exists(template_path)) template_file = read_text_file(template_path, kMaxConfigBytes);
  return assemble(std::move(tokenizer), std::move(config), std::move(template_file), config_path.string());
}

ModelText model_text_from_files(const TokenizerFiles& files, std::string_view origin) {
  Tokenizer tokenizer = Tokenizer::from_json(files.tokenizer_json, origin);
  json config =
      files.tokenizer_config_json.empty() ? json::object() : parsed_config(files.tokenizer_config_json, origin);
  return assemble(std::move(tokenizer), std::move(config), std::nullopt, origin);
}

}  // namespace outrider
