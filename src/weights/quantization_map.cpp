#include "weights/quantization_map.h"

#include <array>
#include <nlohmann/json.hpp>

#include "weights/checkpoint.h"
#include "weights/config.h"
#include "weights/file_error.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kModes{"affine", "mxfp4", "nvfp4", "mxfp8"};

// {group_size?, bits?, mode?} with what is missing taken from `base`, or from the mode's own defaults when the mode
// differs from `base`'s (the base's group is then never valid).
QuantizationParameters read_parameters(const ConfigReader& object, const std::optional<QuantizationParameters>& base) {
  const std::string mode_name = object.text("mode", base ? name_of(base->mode) : "affine");
  std::optional<QuantizationMode> mode;
  for (std::size_t i = 0; i < kModes.size(); ++i)
    if (kModes[i] == mode_name) mode = static_cast<QuantizationMode>(i);
  if (!mode) throw object.refuse("mode", "affine, mxfp4, nvfp4, mxfp8");
  const QuantizationParameters defaults = base && base->mode == *mode ? *base : default_parameters(*mode);
  QuantizationParameters out{*mode, static_cast<int>(object.integer("bits", 1, 64, defaults.bits)),
                             static_cast<int>(object.integer("group_size", 1, 1 << 20, defaults.group))};
  if (*mode == QuantizationMode::affine) {
    if (out.bits < 2 || out.bits > 8 || out.bits == 7) throw object.refuse("bits", "2, 3, 4, 5, 6, 8");
    if (out.group != 32 && out.group != 64 && out.group != 128) throw object.refuse("group_size", "32, 64, 128");
    return out;
  }
  const QuantizationParameters fixed = default_parameters(*mode);
  if (out.bits != fixed.bits) throw object.refuse("bits", fmt::format("{} in mode {}", fixed.bits, mode_name));
  if (out.group != fixed.group) throw object.refuse("group_size", fmt::format("{} in mode {}", fixed.group, mode_name));
  return out;
}

// The map of one config object, or nullptr.
const json* map_in(const json& config, std::string_view origin) {
  for (const char* key : {"quantization", "quantization_config"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    if (!it->is_object()) throw file_error(origin, fmt::format("{} is {} (accepted: an object)", key, it->type_name()));
    const auto method = it->find("quant_method");
    if (key == std::string_view("quantization") || method == it->end() || method->is_null()) return &*it;
    throw file_error(origin,
                     fmt::format("quant_method {} is not available in this version (accepted: none, the MLX form)",
                                 in_quotes(method->is_string() ? method->get<std::string>() : method->dump())),
                     "take the float (bf16) checkpoint or an MLX or GGUF copy of this model");
  }
  return nullptr;
}

}  // namespace

std::string_view name_of(QuantizationMode mode) { return kModes[static_cast<std::size_t>(mode)]; }

QuantizationParameters default_parameters(QuantizationMode mode) {
  switch (mode) {
    case QuantizationMode::affine:
      return {mode, 4, 64};
    case QuantizationMode::mxfp4:
      return {mode, 4, 32};
    case QuantizationMode::nvfp4:
      return {mode, 4, 16};
    case QuantizationMode::mxfp8:
      return {mode, 8, 32};
  }
  return {};
}

QuantizationMap QuantizationMap::from_config(const json& config, std::string_view origin, std::string_view prefix) {
  QuantizationMap map;
  map.origin_ = origin;
  const ConfigReader reader(config, map.origin_);
  if (reader.flag("quantize_activations", false)) throw reader.refuse("quantize_activations", "false");
  if (reader.has("mtplx_mtp_quantization"))
    map.head_defaults_ = read_parameters(reader.object("mtplx_mtp_quantization"), std::nullopt);
  const json* object = map_in(config, origin);
  const auto text = config.find("text_config");
  if (object == nullptr && text != config.end() && text->is_object()) object = map_in(*text, origin);
  if (object == nullptr) return map;

  // A root of its own, so that a key named text_config inside the map means nothing.
  const json holder{{"quantization", *object}};
  const ConfigReader top = ConfigReader(holder, map.origin_).object("quantization");
  if (top.flag("quantize_activations", false)) throw top.refuse("quantize_activations", "false");
  map.defaults_ = read_parameters(top, std::nullopt);
  for (const auto& [key, value] : holder["quantization"].items()) {
    if (!value.is_object() && !value.is_boolean()) {
      // Words other than the three of the format are ignored, but a module's parameters must be parameters.
      if (key.find('.') != std::string::npos) throw top.refuse(key, "true, false, {group_size, bits, mode}");
      continue;
    }
    std::optional<QuantizationParameters> parameters;
    if (value.is_object()) parameters = read_parameters(top.object(key), map.defaults_);
    if (value.is_boolean() && value.get<bool>()) parameters = map.defaults_;
    std::string path = canonical_module(key);
    if (!path.starts_with(prefix)) path.insert(0, prefix);
    if (!map.overrides_.emplace(path, parameters).second)
      throw file_error(origin, fmt::format("quantization names module {} twice", in_quotes(path)));
  }
  return map;
}

QuantizationParameters QuantizationMap::parameters(std::string_view path) const {
  const auto it = overrides_.find(std::string(path));
  if (it != overrides_.end()) {
    if (it->second) return *it->second;
    throw file_error(origin_,
                     fmt::format("quantization says false for {}, but the file holds its scales", in_quotes(path)),
                     "remove that entry of config.json, or take a copy that fits it");
  }
  if (head_defaults_ && path.starts_with("mtp.")) return *head_defaults_;
  if (!defaults_)
    throw file_error(origin_,
                     fmt::format("no quantization parameters, but the file holds scales of {}", in_quotes(path)),
                     "config.json of a quantized model has a \"quantization\" object");
  return *defaults_;
}

}  // namespace outrider
