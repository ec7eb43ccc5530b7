// For tests: a tiny Qwen3.5 checkpoint as tensors in memory, written to disk in any of its layouts.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weights/float_bits.h"
#include "weights/test_files.h"

namespace outrider {

struct TinyTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using TinyTensors = std::map<std::string, TinyTensor>;

// E 64, one linear and one full layer: H 2, K 1, D 32, F 64, V 24, Hk 2, Hv 4, Dk 8, Dv 16, W 4. Canonical names, hf
// layout: zero-centred norms, conv1d [C, 1, W].
struct TinyQwen {
  static constexpr std::int64_t kE = 64, kHk = 2, kHv = 4, kDk = 8, kDv = 16, kTaps = 4, kV = 24;
  static constexpr std::int64_t kChannels = 2 * kHk * kDk + kHv * kDv;

  static nlohmann::json config() {
    return {{"model_type", "qwen3_5_text"},
            {"architectures", {"Qwen3_5ForCausalLM"}},
            {"hidden_size", kE},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"head_dim", 32},
            {"intermediate_size", 64},
            {"vocab_size", kV},
            {"rms_norm_eps", 1e-6},
            {"max_position_embeddings", 512},
            {"full_attention_interval", 2},
            {"linear_num_key_heads", kHk},
            {"linear_num_value_heads", kHv},
            {"linear_key_head_dim", kDk},
            {"linear_value_head_dim", kDv},
            {"linear_conv_kernel_dim", kTaps},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}},
            {"tie_word_embeddings", true}};
  }

  static void add_full_block(TinyTensors& out, const std::string& at) {
    const auto put = [&](const char* name, std::vector<std::int64_t> shape) { add(out, at + name, std::move(shape)); };
    put("input_layernorm.weight", {kE});
    put("post_attention_layernorm.weight", {kE});
    put("self_attn.q_proj.weight", {128, kE});
    put("self_attn.k_proj.weight", {32, kE});
    put("self_attn.v_proj.weight", {32, kE});
    put("self_attn.o_proj.weight", {kE, 64});
    put("self_attn.q_norm.weight", {32});
    put("self_attn.k_norm.weight", {32});
    add_mlp(out, at);
  }
  static void add_mlp(TinyTensors& out, const std::string& at) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) add(out, at + "mlp." + name + ".weight", {64, kE});
  }

  static TinyTensors trunk() {
    TinyTensors out;
    add(out, "model.embed_tokens.weight", {kV, kE});
    add(out, "model.norm.weight", {kE});
    const std::string at = "model.layers.0.";
    add(out, at + "input_layernorm.weight", {kE});
    add(out, at + "post_attention_layernorm.weight", {kE});
    add(out, at + "linear_attn.in_proj_qkv.weight", {kChannels, kE});
    add(out, at + "linear_attn.in_proj_z.weight", {kHv * kDv, kE});
    add(out, at + "linear_attn.in_proj_b.weight", {kHv, kE});
    add(out, at + "linear_attn.in_proj_a.weight", {kHv, kE});
    add(out, at + "linear_attn.conv1d.weight", {kChannels, 1, kTaps});
    add(out, at + "linear_attn.A_log", {kHv});
    add(out, at + "linear_attn.dt_bias", {kHv});
    add(out, at + "linear_attn.norm.weight", {kDv});
    add(out, at + "linear_attn.out_proj.weight", {kE, kHv * kDv});
    add_mlp(out, at);
    add_full_block(out, "model.layers.1.");
    return out;
  }
  static TinyTensors head() {
    TinyTensors out;
    add_full_block(out, "mtp.layers.0.");
    add(out, "mtp.fc.weight", {kE, 2 * kE});
    for (const char* name : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
      add(out, std::string("mtp.") + name + ".weight", {kE});
    return out;
  }
  static TinyTensors whole() {
    TinyTensors out = trunk();
    out.merge(head());
    return out;
  }

 private:
  // Every tensor has values of its own.
  static void add(TinyTensors& out, const std::string& name, std::vector<std::int64_t> shape) {
    std::size_t count = 1;
    for (const std::int64_t dim : shape) count *= static_cast<std::size_t>(dim);
    std::uint32_t seed = 7;
    for (const char c : name) seed = seed * 31 + static_cast<unsigned char>(c);
    out[name] = {std::move(shape), test_values(seed, count)};
  }
};

// What an mlx tool stores for an hf-layout trunk: 1+w, conv1d [C, W, 1].
inline TinyTensors in_mlx_layout(TinyTensors tensors) {
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("conv1d.weight")) std::swap(tensor.shape[1], tensor.shape[2]);
    if (name.find("norm") != std::string::npos && !name.ends_with("linear_attn.norm.weight"))
      for (float& w : tensor.values) w = 1.0f + w;
  }
  return tensors;
}

inline TinyTensors renamed(const TinyTensors& tensors, std::string_view from, std::string_view to) {
  TinyTensors out;
  for (const auto& [name, tensor] : tensors)
    out[name.starts_with(from) ? std::string(to).append(name.substr(from.size())) : name] = tensor;
  return out;
}

using TinyMetadata = std::map<std::string, std::string>;

inline void write_tensors(const std::filesystem::path& file, const TinyTensors& tensors,
                          const TinyMetadata& metadata = {}, Dtype dtype = Dtype::F32) {
  std::filesystem::create_directories(file.parent_path());
  std::vector<StoredTensor> list;
  for (const auto& [name, tensor] : tensors) list.push_back({name, dtype, tensor.shape, 0, 0});
  SafetensorsWriter writer(file, std::move(list), metadata);
  for (const auto& [name, tensor] : tensors) {
    if (dtype == Dtype::F32) {
      writer.write(name, 0, std::as_bytes(std::span(tensor.values)));
      continue;
    }
    std::vector<std::byte> bytes(tensor.values.size() * 2);
    for (std::size_t i = 0; i < tensor.values.size(); ++i)
      store_float(bytes.data() + 2 * i, FloatType::bf16, tensor.values[i]);
    writer.write(name, 0, bytes);
  }
  writer.commit();
}

inline std::filesystem::path write_qwen(const std::filesystem::path& directory, const TinyTensors& tensors,
                                        const TinyMetadata& metadata = {}, nlohmann::json config = TinyQwen::config(),
                                        Dtype dtype = Dtype::F32) {
  write_tensors(directory / "model.safetensors", tensors, metadata, dtype);
  std::ofstream(directory / "config.json") << config.dump();
  return directory;
}

}  // namespace outrider
