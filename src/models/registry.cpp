#include "models/registry.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "models/llama.h"
#include "weights/config.h"

namespace outrider {
namespace {

struct Unsupported {
  std::string_view model_type;
  std::string_view reason;
};

constexpr std::string_view kExperts = "mixtures of experts are not built yet";
constexpr std::string_view kRecurrent = "recurrent layers are not built yet";
constexpr std::string_view kImages = "a wrapper for images or sound; only the text families are built";

constexpr Unsupported kUnsupported[] = {
    {"qwen3_5", "gated delta net layers and the MTP head are not built yet"},
    {"qwen3_5_text", "gated delta net layers and the MTP head are not built yet"},
    {"qwen3_5_moe", kExperts},
    {"qwen3_next", "gated delta net layers and mixtures of experts are not built yet"},
    {"qwen2_moe", kExperts},
    {"qwen3_moe", kExperts},
    {"mixtral", kExperts},
    {"deepseek_v2", "latent attention and mixtures of experts are not built yet"},
    {"deepseek_v3", "latent attention and mixtures of experts are not built yet"},
    {"gpt_oss", "attention sinks, sliding windows and mixtures of experts are not built yet"},
    {"glm4_moe", kExperts},
    {"olmoe", kExperts},
    {"granitemoe", kExperts},
    {"gemma", "gelu, scaled embeddings and norms of 1+w are not built yet"},
    {"gemma2", "gelu, sliding windows and soft-capped logits are not built yet"},
    {"gemma3", "gelu, sliding windows and norms of 1+w are not built yet"},
    {"gemma3_text", "gelu, sliding windows and norms of 1+w are not built yet"},
    {"phi", "LayerNorm, gelu and parallel blocks are not built yet"},
    {"phi3", "fused qkv_proj and gate_up_proj tensors are not read yet"},
    {"minicpm", "scaled embeddings, residuals and logits are not built yet (MiniCPM5 has model_type llama)"},
    {"minicpm3", "latent attention and scaled residuals are not built yet"},
    {"granite", "multipliers of embeddings, residuals and logits are not built yet"},
    {"cohere", "LayerNorm and parallel blocks are not built yet"},
    {"cohere2", "LayerNorm, parallel blocks and sliding windows are not built yet"},
    {"olmo2", "norms after attention and mlp are not built yet"},
    {"glm4", "partial RoPE and norms after attention and mlp are not built yet"},
    {"ministral", "sliding windows are not built yet"},
    {"llama4", "mixtures of experts and chunked attention are not built yet"},
    {"llama4_text", "mixtures of experts and chunked attention are not built yet"},
    {"mamba", kRecurrent},
    {"mamba2", kRecurrent},
    {"falcon_h1", kRecurrent},
    {"lfm2", "short convolution layers are not built yet"},
    {"mistral3", kImages},
    {"mllama", kImages},
    {"llava", kImages},
    {"qwen2_vl", kImages},
    {"qwen2_5_vl", kImages},
    {"qwen3_vl", kImages},
    {"gpt2", "learned positions and LayerNorm are not built yet"},
    {"gpt_neox", "LayerNorm and parallel blocks are not built yet"},
    {"bert", "encoders are not built yet"},
};

std::string supported_names() {
  std::string names;
  for (const LlamaFamily& family : kLlamaFamilies)
    names += (names.empty() ? "" : ", ") + std::string(family.model_type);
  return names;
}

void check_architectures(const ConfigReader& config, const LlamaFamily& family) {
  if (!config.has("architectures")) return;
  const std::vector<std::string> classes = config.texts("architectures");
  if (!classes.empty() && std::find(classes.begin(), classes.end(), family.hf_class) == classes.end())
    throw config.refuse("architectures", std::string(family.hf_class),
                        fmt::format("model_type {} and architectures contradict each other", family.model_type));
}

// A graph described by a source, before any tensor is read.
struct Described {
  LlamaConfig config;
  LlamaWeights weights;  // shapes only
  ModelPlan plan;
};

Described describe(const ModelSource& source, Precision precision) {
  constexpr const char* kOrigin = "config.json";
  const LlamaFamily& family = llama_family(source.config(), kOrigin);
  Described d;
  const LmHead lm_head = source.has("lm_head.weight") ? LmHead::present : LmHead::absent;
  d.config = read_llama_config(ConfigReader(source.config(), kOrigin), family, lm_head);
  ModuleBuilder builder = ModuleBuilder::plan(source, precision);
  d.weights = build_llama(builder, d.config);
  builder.check_complete([&](std::string_view tensor) { return llama_drops(d.config, tensor); });
  d.plan.declaration = declare_llama(d.config, precision);
  check_declaration(d.plan.declaration, builder.linears());
  d.plan.precision = precision;
  d.plan.weight_bytes = builder.bytes();
  d.plan.parameters = builder.parameters();
  d.plan.bytes_by_kind = builder.bytes_by_kind();
  d.plan.work = llama_work(d.weights);
  return d;
}

}  // namespace

const LlamaFamily& llama_family(const nlohmann::json& json, std::string_view origin) {
  const ConfigReader config(json, std::string(origin));
  // The outer name decides: a wrapper around a text model is an architecture of its own.
  const auto outer = json.find("model_type");
  const std::string type =
      outer != json.end() && outer->is_string() ? outer->get<std::string>() : config.text("model_type");
  for (const LlamaFamily& family : kLlamaFamilies)
    if (family.model_type == type) {
      check_architectures(config, family);
      return family;
    }
  for (const Unsupported& known : kUnsupported)
    if (known.model_type == type)
      throw Error(ErrorKind::data,
                  fmt::format("{}: model_type {} is known, not supported: {}", origin, type, known.reason),
                  "supported: " + supported_names());
  throw Error(ErrorKind::data,
              fmt::format("{}: model_type {} is unknown (accepted: {})", origin, type, supported_names()));
}

void check_declaration(const Declaration& d, const LinearShapes& graph) {
  const auto require = [&](bool holds, const std::string& fact) {
    if (!holds) throw Error(ErrorKind::data, fmt::format("the declaration of {} {}", d.architecture, fact));
  };
  require(!d.architecture.empty() && !d.phases.empty(), "lacks a name or phases");
  require(d.layers > 0 && d.width > 0 && d.vocab > 0 && d.context_tokens > 0, "lacks dims");
  std::int64_t full = 0;
  for (const CacheLayerDecl& layer : d.cache_layers) {
    require(layer.model_layer >= 0 && layer.model_layer < d.layers,
            fmt::format("has a cache layer for layer {} of {}", layer.model_layer, d.layers));
    full += layer.kind == CacheKind::full ? 1 : 0;
  }
  require(d.kv.layers == full, fmt::format("has {} full cache layers, {} are laid out", full, d.kv.layers));
  std::set<std::string_view> paths;
  for (const LoraTarget& target : d.lora_targets) {
    const auto found = graph.find(target.path);
    require(found != graph.end(), fmt::format("names the adapter target {}, which the graph lacks", target.path));
    require(found->second.in == target.in && found->second.out == target.out,
            fmt::format("gives {} as {} -> {}, the graph has {} -> {}", target.path, target.in, target.out,
                        found->second.in, found->second.out));
    require(target.layer >= 0 && target.layer < d.layers && paths.insert(target.path).second,
            fmt::format("names the adapter target {} twice or outside its layers", target.path));
  }
}

ModelPlan plan_model(const ModelSource& source, Precision precision) { return describe(source, precision).plan; }

std::unique_ptr<Model> plan_graph(const ModelSource& source, Precision precision) {
  Described d = describe(source, precision);
  return std::make_unique<Llama>(std::move(d.config), std::move(d.weights), d.plan.weight_bytes, precision);
}

std::unique_ptr<Model> load_model(ModelSource& source, Precision precision, Device& device) {
  Described d = describe(source, precision);
  if (d.config.head == HeadWeight::tied && source.has("lm_head.weight"))
    log(LogLevel::info, "{}: tied embeddings, lm_head.weight is not loaded", source.path().string());
  source.set_parallel_for([&device](std::int64_t count, const std::function<void(std::int64_t)>& task) {
    device.parallel_for(count, task);
  });
  ModuleBuilder builder = ModuleBuilder::load(source, precision);
  LlamaWeights weights = build_llama(builder, d.config);
  source.set_parallel_for({});
  OUTRIDER_CHECK(builder.bytes() == d.plan.weight_bytes, "planned {} weight bytes, loaded {}", d.plan.weight_bytes,
                 builder.bytes());
  return std::make_unique<Llama>(std::move(d.config), std::move(weights), builder.bytes(), precision);
}

}  // namespace outrider
