// Config of the Llama-shaped families (models.md 1.2, 2.1, 2.4): one graph, whose differences are data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layers/module_builder.h"
#include "models/decoder_config.h"

namespace outrider {

enum class BiasRule : std::uint8_t { none, by_config, always };
enum class WindowRule : std::uint8_t {
  ignored,         // the family has no window
  limits_context,  // mistral without layer_types: the context ends where the window would begin to matter
  when_used,       // only with use_sliding_window, and then refused
};
enum class RopeRule : std::uint8_t { every_layer, by_layer };  // by_layer: no_rope_layers (smollm3)
enum class HeadNorms : std::uint8_t { none, plain };           // q_norm and k_norm per head (qwen3)

// What sets one family apart.
struct LlamaFamily {
  std::string_view model_type;
  std::string_view hf_class;  // what `architectures` says
  BiasRule qkv_bias = BiasRule::none;
  BiasRule o_bias = BiasRule::none;
  BiasRule mlp_bias = BiasRule::none;
  HeadNorms head_norms = HeadNorms::none;
  WindowRule window = WindowRule::ignored;
  RopeRule rope = RopeRule::every_layer;
};

inline constexpr LlamaFamily kLlamaFamilies[] = {
    {.model_type = "llama",
     .hf_class = "LlamaForCausalLM",
     .qkv_bias = BiasRule::by_config,
     .o_bias = BiasRule::by_config,
     .mlp_bias = BiasRule::by_config},
    {.model_type = "mistral", .hf_class = "MistralForCausalLM", .window = WindowRule::limits_context},
    {.model_type = "smollm3",
     .hf_class = "SmolLM3ForCausalLM",
     .qkv_bias = BiasRule::by_config,
     .o_bias = BiasRule::by_config,
     .mlp_bias = BiasRule::by_config,
     .window = WindowRule::when_used,
     .rope = RopeRule::by_layer},
    {.model_type = "qwen2",
     .hf_class = "Qwen2ForCausalLM",
     .qkv_bias = BiasRule::always,
     .window = WindowRule::when_used},
    {.model_type = "qwen3",
     .hf_class = "Qwen3ForCausalLM",
     .qkv_bias = BiasRule::by_config,
     .o_bias = BiasRule::by_config,
     .head_norms = HeadNorms::plain,
     .window = WindowRule::when_used},
};

struct LlamaConfig : DecoderConfig {
  std::vector<bool> layer_has_rope;  // [N]
  HasBias qkv_bias = HasBias::no, o_bias = HasBias::no, mlp_bias = HasBias::no;
  HeadNorms head_norms = HeadNorms::none;
};

// Error (data) for every refused value of models.md 1.2.6 and every failed check of 1.2.7.
LlamaConfig read_llama_config(const ConfigReader& config, const LlamaFamily& family, LmHead lm_head);

}  // namespace outrider
