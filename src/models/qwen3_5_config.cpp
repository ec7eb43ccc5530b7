#include "models/qwen3_5_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

constexpr const char* kFull = "full_attention";
constexpr const char* kLinear = "linear_attention";

void refuse_foreign_values(const ConfigReader& config) {
  if (config.text("hidden_act", "silu") != "silu") throw config.refuse("hidden_act", "silu");
  for (const char* key : {"num_experts", "num_local_experts"})
    if (config.integer(key, 0, ConfigReader::kMaxDimension, 0) > 0)
      throw config.refuse(key, "0", "mixtures of experts are not available in this version");
  if (config.flag("quantize_activations", false)) throw config.refuse("quantize_activations", "false");
  if (config.flag("attention_bias", false)) throw config.refuse("attention_bias", "false");
  if (!config.flag("attn_output_gate", true)) throw config.refuse("attn_output_gate", "true");
  // The silu of the gated norm; the gate of attention is a sigmoid whatever this says.
  const std::string gate = config.text("output_gate_type", "silu");
  if (gate != "silu" && gate != "swish") throw config.refuse("output_gate_type", "silu, swish");
  if (config.text("mamba_ssm_dtype", "float32") != "float32") throw config.refuse("mamba_ssm_dtype", "float32");
  if (config.flag("mtp_use_dedicated_embeddings", false)) throw config.refuse("mtp_use_dedicated_embeddings", "false");
  if (config.integer("mtp_num_hidden_layers", 0, ConfigReader::kMaxDimension, 0) > 1)
    throw config.refuse("mtp_num_hidden_layers", "0, 1", "or run without the head: --mtp off");
}

std::vector<CacheKind> mixers_of(const ConfigReader& config, std::int64_t layers) {
  std::vector<CacheKind> by_interval(static_cast<std::size_t>(layers));
  const std::int64_t interval = config.integer("full_attention_interval", 1, ConfigReader::kMaxDimension, 4);
  for (std::int64_t i = 0; i < layers; ++i)
    by_interval[static_cast<std::size_t>(i)] = (i + 1) % interval == 0 ? CacheKind::full : CacheKind::recurrent;
  if (!config.has("layer_types")) return by_interval;
  std::vector<CacheKind> listed;
  for (const std::string& type : config.texts("layer_types")) {
    if (type != kFull && type != kLinear) throw config.refuse("layer_types", "full_attention, linear_attention");
    listed.push_back(type == kFull ? CacheKind::full : CacheKind::recurrent);
  }
  if (static_cast<std::int64_t>(listed.size()) != layers)
    throw config.refuse("layer_types", fmt::format("{} entries, one per layer", layers));
  if (config.has("full_attention_interval") && listed != by_interval)
    throw config.refuse("layer_types",
                        fmt::format("what full_attention_interval = {} implies, or one of the two keys", interval));
  return listed;
}

// R of models.md 3.2.
std::int64_t rotated_dims(const ConfigReader& config, std::int64_t head_width) {
  constexpr const char* kKey = "partial_rotary_factor";
  constexpr double kDefault = 0.25;
  ConfigReader holder = config;
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (config.has(key) && config.object(key).has(kKey)) holder = config.object(key);
  const double factor = holder.number(kKey, 0, 1, kDefault);
  const auto rotated = static_cast<std::int64_t>(std::trunc(static_cast<double>(head_width) * factor));
  if (rotated < 2 || rotated % 2 != 0)
    throw config.refuse("head_dim",
                        fmt::format("one of which {} = {} leaves an even number of dims, at least 2", kKey, factor));
  return rotated;
}

}  // namespace

Qwen35Config read_qwen3_5_config(const ConfigReader& config, const std::string& model_type, LmHead lm_head) {
  refuse_foreign_values(config);
  Qwen35Config c;
  c.architecture = model_type;
  read_width_and_heads(config, c);
  c.head_width = config.dimension("head_dim");
  if (2 * c.heads * c.head_width > ConfigReader::kMaxDimension)
    throw config.refuse("head_dim", fmt::format("2 x heads x head_dim at most {}", ConfigReader::kMaxDimension));
  read_ffn_and_vocab(config, c);
  c.rope = read_rope(config, rotated_dims(config, c.head_width));
  c.context_tokens = rope_context_tokens(c.rope);
  c.delta = read_delta_net_dims(config);
  c.mixers = mixers_of(config, c.layers);
  c.head = read_head_weight(config, lm_head);
  return c;
}

}  // namespace outrider
