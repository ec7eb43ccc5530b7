#include "models/qwen3_5.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace outrider {
namespace {

constexpr std::string_view kDeltaKind = "delta_net";
constexpr std::string_view kMtpKind = "mtp";

Attention build_attention(ModuleBuilder& builder, const Qwen35Config& c, std::string_view kind, std::string_view norms,
                          const std::string& path) {
  const std::int64_t q = c.heads * c.head_width, kv = c.kv_heads * c.head_width;
  Attention a;
  a.q_proj = builder.linear(kind, path + ".q_proj", 2 * q, c.width, HasBias::no);
  a.k_proj = builder.linear(kind, path + ".k_proj", kv, c.width, HasBias::no);
  a.v_proj = builder.linear(kind, path + ".v_proj", kv, c.width, HasBias::no);
  a.o_proj = builder.linear(kind, path + ".o_proj", c.width, q, HasBias::no);
  a.q_norm = builder.norm(norms, path + ".q_norm", c.head_width, c.norm_eps);
  a.k_norm = builder.norm(norms, path + ".k_norm", c.head_width, c.norm_eps);
  a.shape = {.heads = c.heads,
             .kv_heads = c.kv_heads,
             .head_width = c.head_width,
             .rotary_half = c.rope.rotated / 2,
             .pairs = c.rope.pairs,
             .q_norm = a.q_norm.data(),
             .k_norm = a.k_norm.data(),
             .norm_eps = c.norm_eps,
             .gate = AttentionGate::sigmoid};
  return a;
}

GatedDeltaNet build_delta_net(ModuleBuilder& builder, const Qwen35Config& c, const std::string& path, L2Epsilon l2) {
  const DeltaNetDims& d = c.delta;
  GatedDeltaNet net;
  net.in_proj_qkv = builder.linear(kDeltaKind, path + ".in_proj_qkv", d.channels(), c.width, HasBias::no);
  net.in_proj_z = builder.linear(kDeltaKind, path + ".in_proj_z", d.values(), c.width, HasBias::no);
  net.in_proj_b = builder.linear(kDeltaKind, path + ".in_proj_b", d.value_heads, c.width, HasBias::no);
  net.in_proj_a = builder.linear(kDeltaKind, path + ".in_proj_a", d.value_heads, c.width, HasBias::no);
  net.conv1d = builder.table(kDeltaKind, path + ".conv1d.weight", d.channels(), d.taps);
  if (net.conv1d.size() > 0) net.conv1d = conv_by_tap(net.conv1d, d.taps);
  net.A_log = builder.vector(kDeltaKind, path + ".A_log", d.value_heads);
  net.dt_bias = builder.vector(kDeltaKind, path + ".dt_bias", d.value_heads);
  net.norm = builder.norm(kNormKind, path + ".norm", d.value_width, c.norm_eps);
  net.out_proj = builder.linear(kDeltaKind, path + ".out_proj", c.width, d.values(), HasBias::no);
  net.l2 = l2;
  return net;
}

MtpWeights build_mtp(ModuleBuilder& builder, const Qwen35Config& c) {
  const auto norm = [&](const char* name) { return builder.norm(kMtpKind, name, c.width, c.norm_eps); };
  MtpWeights mtp;
  mtp.pre_fc_norm_embedding = norm("mtp.pre_fc_norm_embedding");
  mtp.pre_fc_norm_hidden = norm("mtp.pre_fc_norm_hidden");
  mtp.fc = builder.linear(kMtpKind, "mtp.fc", c.width, 2 * c.width, HasBias::no);
  mtp.input_layernorm = norm("mtp.layers.0.input_layernorm");
  mtp.self_attn = build_attention(builder, c, kMtpKind, kMtpKind, "mtp.layers.0.self_attn");
  mtp.post_attention_layernorm = norm("mtp.layers.0.post_attention_layernorm");
  mtp.mlp = build_swiglu(builder, kMtpKind, "mtp.layers.0.mlp", c.width, c.ffn, HasBias::no);
  mtp.norm = norm("mtp.norm");
  return mtp;
}

std::int64_t count_of(const Qwen35Config& c, CacheKind kind) {
  return std::count(c.mixers.begin(), c.mixers.end(), kind);
}

}  // namespace

Qwen35Weights build_qwen3_5(ModuleBuilder& builder, const Qwen35Config& c, const CheckpointFacts& facts) {
  Qwen35Weights weights;
  build_embedding(builder, c, weights);
  std::int64_t full = 0, recurrent = 0;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string path = layer_path(i);
    const bool attends = c.mixers[static_cast<std::size_t>(i)] == CacheKind::full;
    Qwen35Layer layer;
    layer.input_layernorm = builder.norm(kNormKind, path + ".input_layernorm", c.width, c.norm_eps);
    if (attends)
      layer.mixer = build_attention(builder, c, kAttentionKind, kNormKind, path + ".self_attn");
    else
      layer.mixer = build_delta_net(builder, c, path + ".linear_attn", facts.l2_eps);
    layer.cache = attends ? full++ : recurrent++;
    layer.post_attention_layernorm = builder.norm(kNormKind, path + ".post_attention_layernorm", c.width, c.norm_eps);
    layer.mlp = build_swiglu(builder, kMlpKind, path + ".mlp", c.width, c.ffn, HasBias::no);
    weights.layers.push_back(std::move(layer));
  }
  build_norm_and_head(builder, c, weights);
  if (facts.mtp.state == HeadState::ready) weights.mtp = build_mtp(builder, c);
  return weights;
}

ModelWork qwen3_5_work(const Qwen35Weights& weights) {
  ModelWork work;
  for (const Qwen35Layer& layer : weights.layers) {
    if (const auto* a = std::get_if<Attention>(&layer.mixer)) {
      for (const Linear* linear : {&a->q_proj, &a->k_proj, &a->v_proj, &a->o_proj})
        work.layers.push_back(work_of(*linear));
      work.attention_macs += 2 * a->shape.heads * a->shape.head_width;
    } else {
      const auto& net = std::get<GatedDeltaNet>(layer.mixer);
      for (const Linear* linear : {&net.in_proj_qkv, &net.in_proj_z, &net.in_proj_b, &net.in_proj_a, &net.out_proj})
        work.layers.push_back(work_of(*linear));
    }
    for (const Linear* linear : {&layer.mlp.gate_proj, &layer.mlp.up_proj, &layer.mlp.down_proj})
      work.layers.push_back(work_of(*linear));
  }
  work.head = work_of(weights.head());
  return work;
}

bool qwen3_5_drops(const Qwen35Config& config, std::string_view tensor) {
  return config.head == HeadWeight::tied && tensor.starts_with("lm_head.");
}

Declaration declare_qwen3_5(const Qwen35Config& c, const Qwen35Weights& weights, Precision precision) {
  Declaration d;
  d.architecture = c.architecture;
  d.phases = ragged_phases();
  d.kv = {.layers = count_of(c, CacheKind::full),
          .kv_heads = c.kv_heads,
          .head_width = c.head_width,
          .type = precision == Precision::f32 ? FloatType::f32 : FloatType::f16};
  d.recurrent = {.layers = count_of(c, CacheKind::recurrent),
                 .key_heads = c.delta.key_heads,
                 .value_heads = c.delta.value_heads,
                 .key_width = c.delta.key_width,
                 .value_width = c.delta.value_width,
                 .taps = c.delta.taps};
  const std::int64_t q = c.heads * c.head_width, kv = c.kv_heads * c.head_width;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const CacheKind kind = c.mixers[static_cast<std::size_t>(i)];
    d.cache_layers.push_back({kind, i});
    const auto target = [&](const char* name, std::int64_t in, std::int64_t out) {
      d.lora_targets.push_back({layer_path(i) + name, in, out, i});
    };
    if (kind == CacheKind::full) {
      target(".self_attn.q_proj", c.width, 2 * q);
      target(".self_attn.k_proj", c.width, kv);
      target(".self_attn.v_proj", c.width, kv);
      target(".self_attn.o_proj", q, c.width);
    } else {
      // in_proj_a and in_proj_b stay frozen (models.md 3.5).
      target(".linear_attn.in_proj_qkv", c.width, c.delta.channels());
      target(".linear_attn.in_proj_z", c.width, c.delta.values());
      target(".linear_attn.out_proj", c.delta.values(), c.width);
    }
    target(".mlp.gate_proj", c.width, c.ffn);
    target(".mlp.up_proj", c.width, c.ffn);
    target(".mlp.down_proj", c.ffn, c.width);
  }
  d.layers = c.layers;
  d.width = c.width;
  d.ffn = c.ffn;
  d.vocab = c.vocab;
  d.context_tokens = c.context_tokens;
  d.native_draft = weights.mtp ? Support::yes : Support::no;
  d.not_trainable = "training is not available in this version";
  return d;
}

Qwen35::Qwen35(Qwen35Config config, Qwen35Weights weights, HeadIdentity head, std::size_t weight_bytes,
               Precision precision)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      weight_bytes_(weight_bytes),
      declaration_(declare_qwen3_5(config_, weights_, precision)),
      rope_(config_.rope) {
  if (!weights_.mtp) return;
  draft_ = NativeDraft{.weights = std::move(*weights_.mtp),
                       .rope = config_.rope,
                       .embed_tokens = &weights_.embed_tokens.weight.view,
                       .head = &weights_.head(),
                       .final_norm = &weights_.norm,
                       .tap = head.tap,
                       .identity = std::move(head.identity)};
  weights_.mtp.reset();
}

std::size_t Qwen35::scratch_bytes(const Device& device, const StepLimits& limits) const {
  std::size_t block = 0;
  for (const Qwen35Layer& layer : weights_.layers) {
    const auto* a = std::get_if<Attention>(&layer.mixer);
    const std::size_t mixer =
        a != nullptr
            ? a->scratch_bytes(device, limits.tokens, std::min(limits.rows, limits.tokens), limits.context_tokens)
            : std::get<GatedDeltaNet>(layer.mixer).scratch_bytes(device, limits.tokens);
    block = std::max({block, mixer, layer.mlp.scratch_bytes(device, limits.tokens)});
  }
  return decoder_scratch_bytes(block, rope_, weights_.head(), device, limits);
}

Tensor Qwen35::forward(const Step& step, const RaggedBatch& batch) {
  return run_layer_range(step, batch, weights_.embed(step, batch), 0, config_.layers);
}

Tensor Qwen35::run_layer_range(const Step& step, const RaggedBatch& batch, Tensor h, std::int64_t first,
                               std::int64_t last) {
  check_layer_range(step, batch, h, config_, first, last);
  if (first == last) return h;
  Arena::Scope scope(step.arena);
  const RopeAngles angles = rope_.angles(step, batch);
  for (std::int64_t i = first; i < last; ++i) {
    const Qwen35Layer& layer = weights_.layers[static_cast<std::size_t>(i)];
    if (const auto* self_attn = std::get_if<Attention>(&layer.mixer))
      self_attn->forward(step, batch, angles, declaration_.kv, layer.cache, layer.input_layernorm, h);
    else
      std::get<GatedDeltaNet>(layer.mixer)
          .forward(step, batch, declaration_.recurrent, layer.cache, layer.input_layernorm, h);
    layer.mlp.forward(step, layer.post_attention_layernorm, h);
  }
  return h;
}

void Qwen35::head(const Step& step, Tensor hidden, Tensor logits) { weights_.run_head(step, hidden, logits); }

}  // namespace outrider
