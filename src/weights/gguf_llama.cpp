#include "weights/gguf_llama.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "weights/config.h"
#include "weights/file_error.h"
#include "weights/gguf_blocks.h"

namespace outrider {
namespace {

using nlohmann::json;

struct NameRow {
  std::string_view gguf;
  std::string_view canonical;
};
constexpr std::array<NameRow, 3> kGlobal{
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};
constexpr std::array<NameRow, 9> kLayer{{{"attn_norm", "input_layernorm"},
                                         {"attn_q", "self_attn.q_proj"},
                                         {"attn_k", "self_attn.k_proj"},
                                         {"attn_v", "self_attn.v_proj"},
                                         {"attn_output", "self_attn.o_proj"},
                                         {"ffn_norm", "post_attention_layernorm"},
                                         {"ffn_gate", "mlp.gate_proj"},
                                         {"ffn_up", "mlp.up_proj"},
                                         {"ffn_down", "mlp.down_proj"}}};

template <std::size_t N>
std::string_view lookup(const std::array<NameRow, N>& rows, std::string_view gguf) {
  for (const NameRow& row : rows)
    if (row.gguf == gguf) return row.canonical;
  return {};
}

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; empty if the name means nothing in this family.
std::string canonical_of(std::string_view name, std::int64_t layers) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view suffix = name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return {};
  const std::string_view stem = name.substr(0, dot);
  if (const auto global = lookup(kGlobal, stem); !global.empty()) return fmt::format("{}{}", global, suffix);
  if (!stem.starts_with("blk.")) return {};
  const std::string_view rest = stem.substr(4);
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  const auto digits = static_cast<std::size_t>(end - rest.data());
  if (error != std::errc() || layer < 0 || layer >= layers || digits >= rest.size() || rest[digits] != '.') return {};
  if (digits > 1 && rest[0] == '0') return {};  // one spelling per layer
  const auto module = lookup(kLayer, rest.substr(digits + 1));
  return module.empty() ? std::string() : fmt::format("model.layers.{}.{}{}", layer, module, suffix);
}

std::int64_t required(const GgufFile& file, std::string_view key) {
  const auto value = file.integer(key, 1, ConfigReader::kMaxDimension);
  if (!value) throw file_error(file.path().string(), fmt::format("{} is missing", key));
  return *value;
}

// An integer, or a list whose items are all equal (some writers give one per layer).
std::optional<std::int64_t> uniform(const GgufFile& file, std::string_view key) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end() || std::holds_alternative<std::int64_t>(it->second))
    return file.integer(key, 1, ConfigReader::kMaxDimension);
  const auto& list = *file.integers(key);
  if (list.empty() || std::adjacent_find(list.begin(), list.end(), std::not_equal_to<>()) != list.end() ||
      list[0] < 1 || list[0] > ConfigReader::kMaxDimension)
    throw file_error(file.path().string(),
                     fmt::format("{} differs between layers (accepted: one positive value for all)", key),
                     kTakeAnother);
  return list[0];
}

json rope_scaling(const GgufFile& file) {
  const std::string type = file.text("llama.rope.scaling.type").value_or("none");
  if (type == "none") return nullptr;
  const double factor = file.number("llama.rope.scaling.factor").value_or(1.0);
  if (!(factor >= 1.0 && factor <= 1e6))
    throw file_error(file.path().string(), fmt::format("llama.rope.scaling.factor is {} (accepted: 1..1e6)", factor));
  if (type == "linear") return {{"rope_type", "linear"}, {"factor", factor}};
  if (type == "yarn") {
    json scaling{{"rope_type", "yarn"}, {"factor", factor}};
    if (const auto original = file.integer("llama.rope.scaling.original_context_length", 1, 1 << 30))
      scaling["original_max_position_embeddings"] = *original;
    // It multiplies the attention factor in one reader and replaces it in another; no known file sets it.
    if (const auto m = file.number("llama.rope.scaling.attn_factor"); m && *m != 1.0)
      throw file_error(file.path().string(), fmt::format("llama.rope.scaling.attn_factor is {} (accepted: 1)", *m),
                       kTakeAnother);
    return scaling;
  }
  throw file_error(file.path().string(),
                   fmt::format("llama.rope.scaling.type is {} (accepted: none, linear, yarn)", in_quotes(type)),
                   kTakeAnother);
}

// The divisors of rope_freqs.weight [D/2].
json rope_divisors(const GgufFile& file, const GgufTensor& tensor, std::int64_t head_width) {
  const std::string origin = file.path().string();
  if (tensor.type != GgufType::F32 || tensor.dims.size() != 1 || tensor.dims[0] != head_width / 2)
    throw tensor_error(
        origin, tensor.name,
        fmt::format("is {} {} (accepted: F32 [{}])", name_of(tensor.type), shape_text(tensor.dims), head_width / 2));
  json list = json::array();
  const auto bytes = file.bytes(tensor);
  for (std::int64_t i = 0; i < head_width / 2; ++i) {
    const float value = load_float(bytes.data() + 4 * i, FloatType::f32);
    if (!(value > 0.0f && value < 1e9f))
      throw tensor_error(origin, tensor.name, fmt::format("divisor {} is {} (accepted: above 0)", i, value));
    list.push_back(value);
  }
  return list;
}

struct Dimensions {
  std::int64_t width = 0, layers = 0, heads = 0, kv_heads = 0, head_width = 0, ffn = 0, vocab = 0;
};

Dimensions read_dimensions(const GgufFile& file) {
  const std::string origin = file.path().string();
  Dimensions d;
  d.width = required(file, "llama.embedding_length");
  d.layers = required(file, "llama.block_count");
  if (d.layers > 10000) throw file_error(origin, fmt::format("llama.block_count is {} (accepted: 1..10000)", d.layers));
  const auto heads = uniform(file, "llama.attention.head_count");
  const auto ffn = uniform(file, "llama.feed_forward_length");
  if (!heads || !ffn)
    throw file_error(origin,
                     fmt::format("llama.{} is missing", !heads ? "attention.head_count" : "feed_forward_length"));
  d.heads = *heads;
  d.ffn = *ffn;
  d.kv_heads = uniform(file, "llama.attention.head_count_kv").value_or(d.heads);
  const auto key_length = file.integer("llama.attention.key_length", 2, ConfigReader::kMaxDimension);
  if (!key_length && d.width % d.heads != 0)
    throw file_error(origin, fmt::format("llama.embedding_length {} is not a multiple of llama.attention.head_count {}",
                                         d.width, d.heads));
  d.head_width = key_length.value_or(d.width / d.heads);
  if (d.heads % d.kv_heads != 0)
    throw file_error(origin, fmt::format("llama.attention.head_count {} is not a multiple of head_count_kv {}", d.heads,
                                         d.kv_heads));
  if (d.head_width % 2 != 0) throw file_error(origin, fmt::format("head width {} is odd", d.head_width), kTakeAnother);
  const auto rotated =
      file.integer("llama.rope.dimension_count", 1, ConfigReader::kMaxDimension).value_or(d.head_width);
  if (rotated != d.head_width)
    throw file_error(
        origin, fmt::format("llama.rope.dimension_count is {} (accepted: the head width {})", rotated, d.head_width),
        kTakeAnother);
  const auto value_length =
      file.integer("llama.attention.value_length", 1, ConfigReader::kMaxDimension).value_or(d.head_width);
  if (value_length != d.head_width)
    throw file_error(
        origin,
        fmt::format("llama.attention.value_length is {} (accepted: the key length {})", value_length, d.head_width),
        kTakeAnother);
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2) throw file_error(origin, "has no matrix token_embd.weight");
  d.vocab = embedding->dims[1];
  const auto declared = file.integer("llama.vocab_size", 1, ConfigReader::kMaxDimension).value_or(d.vocab);
  if (declared != d.vocab)
    throw file_error(origin, fmt::format("llama.vocab_size is {}, token_embd.weight has {} rows", declared, d.vocab));
  if (const auto experts = file.integer("llama.expert_count", 0, 1 << 20); experts && *experts > 0)
    throw file_error(
        origin,
        fmt::format("llama.expert_count is {} (accepted: 0; mixtures of experts are not available in this version)",
                    *experts),
        kTakeAnother);
  return d;
}

std::optional<std::int64_t> token_id(const GgufFile& file, std::string_view key, std::int64_t vocab) {
  return file.integer(key, 0, vocab - 1);
}

void add_token_ids(const GgufFile& file, std::int64_t vocab, GgufModel& model) {
  if (const auto bos = token_id(file, "tokenizer.ggml.bos_token_id", vocab)) {
    model.config["bos_token_id"] = *bos;
    model.generation_config["bos_token_id"] = *bos;
  }
  json stop = json::array();
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
    if (const auto id = token_id(file, key, vocab); id && std::find(stop.begin(), stop.end(), json(*id)) == stop.end())
      stop.push_back(*id);
  if (stop.empty()) return;
  model.config["eos_token_id"] = stop.size() == 1 ? stop[0] : stop;
  model.generation_config["eos_token_id"] = model.config["eos_token_id"];
}

json read_config(const GgufFile& file, const Dimensions& d) {
  json config{{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"hidden_act", "silu"},
              {"hidden_size", d.width},
              {"num_hidden_layers", d.layers},
              {"num_attention_heads", d.heads},
              {"num_key_value_heads", d.kv_heads},
              {"head_dim", d.head_width},
              {"intermediate_size", d.ffn},
              {"vocab_size", d.vocab},
              {"torch_dtype", "float16"}};
  config["max_position_embeddings"] = file.integer("llama.context_length", 1, 1 << 30).value_or(2048);
  const auto epsilon = file.number("llama.attention.layer_norm_rms_epsilon");
  if (!epsilon || !(*epsilon > 0 && *epsilon < 1))
    throw file_error(
        file.path().string(),
        fmt::format("llama.attention.layer_norm_rms_epsilon is {} (accepted: above 0, below 1)", epsilon.value_or(0)));
  config["rms_norm_eps"] = *epsilon;
  const double theta = file.number("llama.rope.freq_base").value_or(10000.0);
  if (!(theta > 1.0 && theta < 1e12))
    throw file_error(file.path().string(), fmt::format("llama.rope.freq_base is {} (accepted: above 1)", theta));
  config["rope_theta"] = theta;
  if (json scaling = rope_scaling(file); !scaling.is_null()) config["rope_scaling"] = std::move(scaling);
  return config;
}

}  // namespace

std::int64_t source_row(std::int64_t row, std::int64_t rows, std::int64_t permuted_heads) {
  if (permuted_heads == 0) return row;
  const std::int64_t width = rows / permuted_heads;
  const std::int64_t head = row / width, in_head = row % width;
  return head * width + 2 * (in_head % (width / 2)) + in_head / (width / 2);
}

GgufModel read_gguf_model(const GgufFile& file) {
  const std::string origin = file.path().string();
  const auto architecture = file.text("general.architecture");
  if (!architecture) throw file_error(origin, "general.architecture is missing");
  if (*architecture != "llama")
    throw file_error(
        origin, fmt::format("architecture {} is not supported in GGUF (accepted: llama)", in_quotes(*architecture)),
        "take the Hugging Face or MLX checkpoint of this model");
  const Dimensions d = read_dimensions(file);
  GgufModel model;
  model.config = read_config(file, d);
  model.generation_config = json::object();
  add_token_ids(file, d.vocab, model);
  bool attention_bias = false, mlp_bias = false;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == "rope_freqs.weight") {
      model.config["rope_freq_divisors"] = rope_divisors(file, tensor, d.head_width);
      continue;
    }
    const std::string name = canonical_of(tensor.name, d.layers);
    if (name.empty()) throw tensor_error(origin, tensor.name, "does not belong to a llama model");
    std::int64_t heads = name.find(".q_proj.") != std::string::npos   ? d.heads
                         : name.find(".k_proj.") != std::string::npos ? d.kv_heads
                                                                      : 0;
    const std::int64_t rows = tensor.dims.size() == 1 ? tensor.dims[0] : tensor.rows();
    if (heads > 0 && rows != heads * d.head_width)
      throw tensor_error(
          origin, tensor.name,
          fmt::format("has {} rows, {} heads of width {} need {}", rows, heads, d.head_width, heads * d.head_width));
    attention_bias = attention_bias || (name.ends_with(".bias") && name.find(".self_attn.") != std::string::npos);
    mlp_bias = mlp_bias || (name.ends_with(".bias") && name.find(".mlp.") != std::string::npos);
    model.tensors.emplace(name, GgufModelTensor{&tensor, heads});
  }
  model.config["tie_word_embeddings"] = !model.tensors.contains("lm_head.weight");
  model.config["attention_bias"] = attention_bias;
  model.config["mlp_bias"] = mlp_bias;
  return model;
}

}  // namespace outrider
