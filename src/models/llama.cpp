#include "models/llama.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace outrider {
namespace {

Attention build_attention(ModuleBuilder& builder, const LlamaConfig& c, const std::string& path, std::int64_t layer) {
  const std::int64_t q = c.heads * c.head_width, kv = c.kv_heads * c.head_width;
  Attention a;
  a.q_proj = builder.linear(kAttentionKind, path + ".q_proj", q, c.width, c.qkv_bias);
  a.k_proj = builder.linear(kAttentionKind, path + ".k_proj", kv, c.width, c.qkv_bias);
  a.v_proj = builder.linear(kAttentionKind, path + ".v_proj", kv, c.width, c.qkv_bias);
  a.o_proj = builder.linear(kAttentionKind, path + ".o_proj", c.width, q, c.o_bias);
  if (c.head_norms == HeadNorms::plain) {
    a.q_norm = builder.norm(kNormKind, path + ".q_norm", c.head_width, c.norm_eps);
    a.k_norm = builder.norm(kNormKind, path + ".k_norm", c.head_width, c.norm_eps);
  }
  a.shape = {.heads = c.heads,
             .kv_heads = c.kv_heads,
             .head_width = c.head_width,
             .rotary_half = c.layer_has_rope[static_cast<std::size_t>(layer)] ? c.rope.rotated / 2 : 0,
             .pairs = c.rope.pairs,
             .q_norm = a.q_norm.data(),
             .k_norm = a.k_norm.data(),
             .norm_eps = c.norm_eps};
  return a;
}

}  // namespace

LlamaWeights build_llama(ModuleBuilder& builder, const LlamaConfig& c) {
  LlamaWeights weights;
  build_embedding(builder, c, weights);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string path = layer_path(i);
    LlamaLayer layer;
    layer.input_layernorm = builder.norm(kNormKind, path + ".input_layernorm", c.width, c.norm_eps);
    layer.self_attn = build_attention(builder, c, path + ".self_attn", i);
    layer.post_attention_layernorm = builder.norm(kNormKind, path + ".post_attention_layernorm", c.width, c.norm_eps);
    layer.mlp = build_swiglu(builder, kMlpKind, path + ".mlp", c.width, c.ffn, c.mlp_bias);
    weights.layers.push_back(std::move(layer));
  }
  build_norm_and_head(builder, c, weights);
  return weights;
}

ModelWork llama_work(const LlamaWeights& weights) {
  ModelWork work;
  for (const LlamaLayer& layer : weights.layers) {
    const Attention& a = layer.self_attn;
    const SwiGlu& mlp = layer.mlp;
    for (const Linear* linear :
         {&a.q_proj, &a.k_proj, &a.v_proj, &a.o_proj, &mlp.gate_proj, &mlp.up_proj, &mlp.down_proj})
      work.layers.push_back(work_of(*linear));
    work.attention_macs += 2 * a.shape.heads * a.shape.head_width;
  }
  work.head = work_of(weights.head());
  return work;
}

bool llama_drops(const LlamaConfig& config, std::string_view tensor) {
  if (tensor.ends_with(".self_attn.rotary_emb.inv_freq") || tensor == "model.rotary_emb.inv_freq") return true;
  return config.head == HeadWeight::tied && tensor.starts_with("lm_head.");
}

Declaration declare_llama(const LlamaConfig& c, Precision precision) {
  Declaration d;
  d.architecture = c.architecture;
  d.phases = ragged_phases();
  d.kv = {.layers = c.layers,
          .kv_heads = c.kv_heads,
          .head_width = c.head_width,
          .type = precision == Precision::f32 ? FloatType::f32 : FloatType::f16};
  const std::int64_t q = c.heads * c.head_width, kv = c.kv_heads * c.head_width;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    d.cache_layers.push_back({CacheKind::full, i});
    const std::string path = layer_path(i);
    d.lora_targets.push_back({path + ".self_attn.q_proj", c.width, q, i});
    d.lora_targets.push_back({path + ".self_attn.k_proj", c.width, kv, i});
    d.lora_targets.push_back({path + ".self_attn.v_proj", c.width, kv, i});
    d.lora_targets.push_back({path + ".self_attn.o_proj", q, c.width, i});
    d.lora_targets.push_back({path + ".mlp.gate_proj", c.width, c.ffn, i});
    d.lora_targets.push_back({path + ".mlp.up_proj", c.width, c.ffn, i});
    d.lora_targets.push_back({path + ".mlp.down_proj", c.ffn, c.width, i});
  }
  d.layers = c.layers;
  d.width = c.width;
  d.ffn = c.ffn;
  d.vocab = c.vocab;
  d.context_tokens = c.context_tokens;
  d.not_trainable = "training is not available in this version";
  return d;
}

Llama::Llama(LlamaConfig config, LlamaWeights weights, std::size_t weight_bytes, Precision precision)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      weight_bytes_(weight_bytes),
      declaration_(declare_llama(config_, precision)),
      rope_(config_.rope) {}

std::size_t Llama::scratch_bytes(const Device& device, const StepLimits& limits) const {
  std::size_t block = 0;
  for (const LlamaLayer& layer : weights_.layers)
    block = std::max({block,
                      layer.self_attn.scratch_bytes(device, limits.tokens, std::min(limits.rows, limits.tokens),
                                                    limits.context_tokens),
                      layer.mlp.scratch_bytes(device, limits.tokens)});
  return decoder_scratch_bytes(block, rope_, weights_.head(), device, limits);
}

Tensor Llama::forward(const Step& step, const RaggedBatch& batch) {
  return run_layer_range(step, batch, weights_.embed(step, batch), 0, config_.layers);
}

Tensor Llama::run_layer_range(const Step& step, const RaggedBatch& batch, Tensor h, std::int64_t first,
                              std::int64_t last) {
  check_layer_range(step, batch, h, config_, first, last);
  if (first == last) return h;
  Arena::Scope scope(step.arena);
  const RopeAngles angles = rope_.angles(step, batch);
  for (std::int64_t i = first; i < last; ++i) {
    const LlamaLayer& layer = weights_.layers[static_cast<std::size_t>(i)];
    layer.self_attn.forward(step, batch, angles, declaration_.kv, i, layer.input_layernorm, h);
    layer.mlp.forward(step, layer.post_attention_layernorm, h);
  }
  return h;
}

void Llama::head(const Step& step, Tensor hidden, Tensor logits) { weights_.run_head(step, hidden, logits); }

}  // namespace outrider
