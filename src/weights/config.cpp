#include "weights/config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "weights/file_error.h"

namespace outrider {
namespace {

using nlohmann::json;

// A value in a message: one line, cut.
std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

const json* member(const json* object, std::string_view key) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto it = object->find(key);
  return it == object->end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return std::nullopt;
  if (!value.is_number_integer()) return std::nullopt;
  return value.get<std::int64_t>();
}

// One id or a list of ids; nullopt if it is neither.
std::optional<std::vector<std::int64_t>> as_ids(const json& value) {
  std::vector<std::int64_t> ids;
  const auto add = [&ids](const json& item) {
    const auto id = as_integer(item);
    if (id) ids.push_back(*id);
    return id.has_value();
  };
  if (!value.is_array()) return add(value) ? std::optional(ids) : std::nullopt;
  for (const json& item : value)
    if (!add(item)) return std::nullopt;
  return ids;
}

}  // namespace

ConfigReader::ConfigReader(const json& root, std::string origin) : root_(&root), origin_(std::move(origin)) {
  if (!root.is_object()) throw file_error(origin_, fmt::format("is {}, not a JSON object", root.type_name()));
  const json* text = member(&root, "text_config");
  if (text != nullptr && !text->is_object())
    throw file_error(origin_, fmt::format("text_config is {} (accepted: an object)", shown(*text)));
  text_ = text != nullptr ? text : root_;
}

ConfigReader::ConfigReader(const json* text, const json* root, std::string origin, std::string prefix)
    : text_(text), root_(root), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

ConfigReader ConfigReader::object(std::string_view key) const {
  const json& value = required(key, "an object");
  if (!value.is_object()) throw refuse(key, "an object");
  return {&value, &value, origin_, fmt::format("{}{}.", prefix_, key)};
}

const json* ConfigReader::find(std::string_view key) const {
  if (const json* value = member(text_, key)) return value;
  return member(root_, key);
}

const json& ConfigReader::required(std::string_view key, std::string_view accepted) const {
  const json* value = find(key);
  if (value == nullptr)
    throw file_error(origin_, fmt::format("{}{} is missing (accepted: {})", prefix_, key, accepted),
                     "take the config.json that belongs to these weights");
  return *value;
}

Error ConfigReader::refuse(std::string_view key, std::string_view accepted, std::string hint) const {
  const json* value = find(key);
  return file_error(
      origin_,
      fmt::format("{}{} is {} (accepted: {})", prefix_, key, value != nullptr ? shown(*value) : "absent", accepted),
      std::move(hint));
}

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const std::string accepted = fmt::format("an integer {}..{}", low, high);
  const auto value = as_integer(required(key, accepted));
  if (!value || *value < low || *value > high) throw refuse(key, accepted);
  return *value;
}

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t low, std::int64_t high,
                                   std::int64_t fallback) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double ConfigReader::number(std::string_view key, double low, double high) const {
  const std::string accepted = fmt::format("a number {}..{}", low, high);
  const json& value = required(key, accepted);
  if (!value.is_number()) throw refuse(key, accepted);
  const auto number = value.get<double>();
  if (!(number >= low && number <= high)) throw refuse(key, accepted);
  return number;
}

double ConfigReader::number(std::string_view key, double low, double high, double fallback) const {
  return has(key) ? number(key, low, high) : fallback;
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) throw refuse(key, "true, false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key) const {
  const json& value = required(key, "a string");
  if (!value.is_string()) throw refuse(key, "a string");
  return value.get<std::string>();
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

std::vector<double> ConfigReader::numbers(std::string_view key) const {
  const json& value = required(key, "a list of numbers");
  std::vector<double> out;
  for (const json& item : value.is_array() ? value : throw refuse(key, "a list of numbers")) {
    if (!item.is_number() || !std::isfinite(item.get<double>())) throw refuse(key, "a list of numbers");
    out.push_back(item.get<double>());
  }
  return out;
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
  const json& value = required(key, "a list of strings");
  std::vector<std::string> out;
  for (const json& item : value.is_array() ? value : throw refuse(key, "a list of strings")) {
    if (!item.is_string()) throw refuse(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<std::int32_t> stop_ids(const json& config, const json& generation,
                                   std::span<const std::int32_t> tokenizer_eos, std::int64_t vocab) {
  std::set<std::int32_t> ids;
  const auto add = [&](std::int64_t id, std::string_view where) {
    if (id < 0 || id >= vocab)
      throw file_error(where, fmt::format("end token id {} (accepted: 0..{}, the model's vocabulary)", id, vocab - 1));
    ids.insert(static_cast<std::int32_t>(id));
  };
  bool decided = false;
  if (const json* value = member(&generation, "eos_token_id")) {
    if (const auto list = as_ids(*value)) {
      decided = true;
      for (const std::int64_t id : *list) add(id, "generation_config.json: eos_token_id");
    } else {
      log(LogLevel::warning, "generation_config.json: eos_token_id is {}, not an id or a list of ids; ignored",
          shown(*value));
    }
  }
  if (!decided) {
    const json* value = member(&config, "eos_token_id");
    if (value == nullptr) value = member(member(&config, "text_config"), "eos_token_id");
    if (value != nullptr) {
      const auto list = as_ids(*value);
      if (!list)
        throw file_error("config.json",
                         fmt::format("eos_token_id is {} (accepted: an id or a list of ids)", shown(*value)));
      for (const std::int64_t id : *list) add(id, "config.json: eos_token_id");
    }
  }
  for (const std::int32_t id : tokenizer_eos) add(id, "the tokenizer's eos_token");
  return {ids.begin(), ids.end()};
}

}  // namespace outrider
