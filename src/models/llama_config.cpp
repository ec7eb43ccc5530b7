#include "models/llama_config.h"

#include <algorithm>

namespace outrider {
namespace {

HasBias bias_of(BiasRule rule, const ConfigReader& config, std::string_view key) {
  if (rule == BiasRule::by_config) return config.flag(key, false) ? HasBias::yes : HasBias::no;
  return rule == BiasRule::always ? HasBias::yes : HasBias::no;
}

void refuse_foreign_values(const ConfigReader& config) {
  const std::string act = config.text("hidden_act", "silu");
  if (act != "silu") throw config.refuse("hidden_act", "silu");
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"})
    if (config.has(key) && config.integer(key, 0, ConfigReader::kMaxDimension) > 0)
      throw config.refuse(key, "0", "mixtures of experts are not available in this version");
  if (config.flag("quantize_activations", false)) throw config.refuse("quantize_activations", "false");
  if (config.number("partial_rotary_factor", 0, 1e3, 1) != 1) throw config.refuse("partial_rotary_factor", "1");
}

// Types of the layers if the config lists them, else empty.
std::vector<std::string> layer_types(const ConfigReader& config, std::int64_t layers) {
  if (!config.has("layer_types")) return {};
  std::vector<std::string> types = config.texts("layer_types");
  if (static_cast<std::int64_t>(types.size()) != layers)
    throw config.refuse("layer_types", fmt::format("{} entries, one per layer", layers));
  for (const std::string& type : types)
    if (type != "full_attention" && type != "sliding_attention")
      throw config.refuse("layer_types", "full_attention, sliding_attention");
  return types;
}

// The context the family's window leaves, from the `context` the positions allow.
std::int64_t windowed_context(const ConfigReader& config, WindowRule rule, const std::vector<std::string>& types,
                              std::int64_t context) {
  if (!config.has("sliding_window")) return context;
  constexpr const char* kHint = "attention over a sliding window is not available in this version";
  const bool any_sliding = std::find(types.begin(), types.end(), "sliding_attention") != types.end();
  if (rule == WindowRule::when_used) {
    if (config.flag("use_sliding_window", false)) throw config.refuse("use_sliding_window", "false", kHint);
    return context;
  }
  if (any_sliding) throw config.refuse("sliding_window", "null while layer_types has sliding_attention", kHint);
  if (rule == WindowRule::ignored || !types.empty()) return context;
  return std::min(context, config.integer("sliding_window", 1, std::int64_t{1} << 40));
}

// smollm3: no_rope_layers[i] = 1 means layer i uses RoPE; absent: every no_rope_layer_interval-th layer has none.
std::vector<bool> layers_with_rope(const ConfigReader& config, RopeRule rule, std::int64_t layers) {
  std::vector<bool> uses(static_cast<std::size_t>(layers), true);
  if (rule == RopeRule::every_layer) return uses;
  if (config.has("no_rope_layers")) {
    const std::vector<double> flags = config.numbers("no_rope_layers");
    const auto binary = [](double v) { return v == 0 || v == 1; };
    if (flags.size() != uses.size() || !std::all_of(flags.begin(), flags.end(), binary))
      throw config.refuse("no_rope_layers", fmt::format("{} entries, each 0 or 1", layers));
    for (std::size_t i = 0; i < uses.size(); ++i) uses[i] = flags[i] == 1;
    return uses;
  }
  const std::int64_t interval = config.dimension("no_rope_layer_interval", 4);
  for (std::size_t i = 0; i < uses.size(); ++i) uses[i] = (static_cast<std::int64_t>(i) + 1) % interval != 0;
  return uses;
}

}  // namespace

LlamaConfig read_llama_config(const ConfigReader& config, const LlamaFamily& family, LmHead lm_head) {
  refuse_foreign_values(config);
  LlamaConfig c;
  c.architecture = family.model_type;
  read_width_and_heads(config, c);
  if (!config.has("head_dim") && c.width % c.heads != 0)
    throw config.refuse("hidden_size", fmt::format("a multiple of num_attention_heads = {} without head_dim", c.heads));
  c.head_width = config.dimension("head_dim", std::max<std::int64_t>(1, c.width / c.heads));
  if (c.head_width < 2 || c.head_width % 2 != 0) throw config.refuse("head_dim", "an even number of at least 2");
  if (c.heads * c.head_width > ConfigReader::kMaxDimension)
    throw config.refuse("head_dim", fmt::format("heads x head_dim at most {}", ConfigReader::kMaxDimension));
  read_ffn_and_vocab(config, c);
  c.rope = read_rope(config, c.head_width);
  c.layer_has_rope = layers_with_rope(config, family.rope, c.layers);
  c.context_tokens =
      windowed_context(config, family.window, layer_types(config, c.layers), rope_context_tokens(c.rope));
  c.qkv_bias = bias_of(family.qkv_bias, config, "attention_bias");
  c.o_bias = bias_of(family.o_bias, config, "attention_bias");
  c.mlp_bias = bias_of(family.mlp_bias, config, "mlp_bias");
  c.head_norms = family.head_norms;
  c.head = read_head_weight(config, lm_head);
  return c;
}

}  // namespace outrider
