#include "models/registry.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "models/llama.h"
#include "models/qwen3_5.h"
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
    {"qwen3_5_moe", kExperts},
    {"qwen3_next", "mixtures of experts are not built yet"},
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

// The types of Qwen3.5 checkpoints and what `architectures` says; the first is the wrapper around the second's text
// model, whose vision tower is dropped.
struct Qwen35Type {
  std::string_view model_type;
  std::string_view hf_class;
};
constexpr Qwen35Type kQwen35Types[] = {{"qwen3_5", "Qwen3_5ForConditionalGeneration"},
                                       {"qwen3_5_text", "Qwen3_5ForCausalLM"}};

std::string supported_names() {
  std::string names;
  for (const LlamaFamily& family : kLlamaFamilies)
    names += (names.empty() ? "" : ", ") + std::string(family.model_type);
  for (const Qwen35Type& type : kQwen35Types) names += ", " + std::string(type.model_type);
  return names;
}

void check_architectures(const ConfigReader& config, std::string_view model_type, std::string_view hf_class) {
  if (!config.has("architectures")) return;
  const std::vector<std::string> classes = config.texts("architectures");
  if (!classes.empty() && std::find(classes.begin(), classes.end(), hf_class) == classes.end())
    throw config.refuse("architectures", std::string(hf_class),
                        fmt::format("model_type {} and architectures contradict each other", model_type));
}

// A graph described by a source, before any tensor is read.
struct Described {
  ModelPlan plan;
  HeadWeight head = HeadWeight::tied;
  // The graph with what the builder gives it: shapes alone, or weights. `identity`: of its draft head.
  std::function<std::unique_ptr<Model>(ModuleBuilder& builder, std::string identity)> build;
};

// What every graph's plan takes from the builder that planned its weights.
void finish(ModelPlan& plan, const ModuleBuilder& builder, Precision precision,
            const std::function<bool(std::string_view tensor)>& dropped) {
  builder.check_complete(dropped);
  check_declaration(plan.declaration, builder.linears());
  plan.precision = precision;
  plan.weight_bytes = builder.bytes();
  plan.parameters = builder.parameters();
  plan.bytes_by_kind = builder.bytes_by_kind();
}

LmHead lm_head_of(const ModelSource& source) { return source.has("lm_head.weight") ? LmHead::present : LmHead::absent; }

Described describe_llama(const ConfigReader& reader, const LlamaFamily& family, const ModelSource& source,
                         Precision precision) {
  const LlamaConfig config = read_llama_config(reader, family, lm_head_of(source));
  ModuleBuilder planner = ModuleBuilder::plan(source, precision);
  Described d;
  d.head = config.head;
  d.plan.work = llama_work(build_llama(planner, config));
  d.plan.declaration = declare_llama(config, precision);
  finish(d.plan, planner, precision, [&](std::string_view tensor) { return llama_drops(config, tensor); });
  d.build = [config, precision](ModuleBuilder& builder, const std::string&) {
    LlamaWeights weights = build_llama(builder, config);
    return std::make_unique<Llama>(config, std::move(weights), builder.bytes(), precision);
  };
  return d;
}

Described describe_qwen3_5(const ConfigReader& reader, const std::string& model_type, const ModelSource& source,
                           Precision precision) {
  const Qwen35Config config = read_qwen3_5_config(reader, model_type, lm_head_of(source));
  const CheckpointFacts facts = source.facts() != nullptr ? *source.facts() : CheckpointFacts();
  ModuleBuilder planner = ModuleBuilder::plan(source, precision);
  const Qwen35Weights planned = build_qwen3_5(planner, config, facts);
  Described d;
  d.head = config.head;
  d.plan.work = qwen3_5_work(planned);
  d.plan.declaration = declare_qwen3_5(config, planned, precision);
  finish(d.plan, planner, precision, [&](std::string_view tensor) { return qwen3_5_drops(config, tensor); });
  d.build = [config, facts, precision](ModuleBuilder& builder, std::string identity) {
    Qwen35Weights weights = build_qwen3_5(builder, config, facts);
    return std::make_unique<Qwen35>(config, std::move(weights), HeadIdentity{facts.mtp.tap, std::move(identity)},
                                    builder.bytes(), precision);
  };
  return d;
}

// The outer name decides: a wrapper around a text model is an architecture of its own.
std::string model_type_of(const nlohmann::json& json, const ConfigReader& config) {
  const auto outer = json.find("model_type");
  return outer != json.end() && outer->is_string() ? outer->get<std::string>() : config.text("model_type");
}

Described describe(const ModelSource& source, Precision precision) {
  constexpr const char* kOrigin = "config.json";
  const ConfigReader config(source.config(), kOrigin);
  const std::string type = model_type_of(source.config(), config);
  for (const Qwen35Type& known : kQwen35Types)
    if (known.model_type == type) {
      check_architectures(config, type, known.hf_class);
      return describe_qwen3_5(config, type, source, precision);
    }
  return describe_llama(config, llama_family(source.config(), kOrigin), source, precision);
}

}  // namespace

const LlamaFamily& llama_family(const nlohmann::json& json, std::string_view origin) {
  const ConfigReader config(json, std::string(origin));
  const std::string type = model_type_of(json, config);
  for (const LlamaFamily& family : kLlamaFamilies)
    if (family.model_type == type) {
      check_architectures(config, family.model_type, family.hf_class);
      return family;
    }
  for (const Unsupported& known : kUnsupported)
    if (known.model_type == type)
      throw Error(ErrorKind::data,
                  fmt::format("{}: model_type {} is known, not supported: {}", origin, type, known.reason),
                  "supported: " + supported_names());
  throw Error(ErrorKind::data,
              fmt::format("{}: model_type {} is unknown (accepted: {})", origin, type, supported_names()),
              "take a model of one of these types");
}

void check_declaration(const Declaration& d, const LinearShapes& graph) {
  const auto require = [&](bool holds, const std::string& fact) {
    if (!holds) throw Error(ErrorKind::data, fmt::format("the declaration of {} {}", d.architecture, fact));
  };
  require(!d.architecture.empty() && !d.phases.empty(), "lacks a name or phases");
  require(d.layers > 0 && d.width > 0 && d.vocab > 0 && d.context_tokens > 0, "lacks dims");
  std::int64_t full = 0, recurrent = 0;
  for (const CacheLayerDecl& layer : d.cache_layers) {
    require(layer.model_layer >= 0 && layer.model_layer < d.layers,
            fmt::format("has a cache layer for layer {} of {}", layer.model_layer, d.layers));
    full += layer.kind == CacheKind::full ? 1 : 0;
    recurrent += layer.kind == CacheKind::recurrent ? 1 : 0;
  }
  require(d.kv.layers == full, fmt::format("has {} full cache layers, {} are laid out", full, d.kv.layers));
  require(d.recurrent.layers == recurrent,
          fmt::format("has {} recurrent cache layers, {} are laid out", recurrent, d.recurrent.layers));
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
  const Described described = describe(source, precision);
  ModuleBuilder builder = ModuleBuilder::plan(source, precision);
  return described.build(builder, {});
}

std::unique_ptr<Model> load_model(ModelSource& source, Precision precision, Device& device) {
  const Described described = describe(source, precision);
  if (described.head == HeadWeight::tied && source.has("lm_head.weight"))
    log(LogLevel::info, "{}: tied embeddings, lm_head.weight is not loaded", source.path().string());
  std::string identity;
  if (described.plan.declaration.native_draft == Support::yes) identity = hex(source.mtp_identity());
  source.set_parallel_for([&device](std::int64_t count, const std::function<void(std::int64_t)>& task) {
    device.parallel_for(count, task);
  });
  ModuleBuilder builder = ModuleBuilder::load(source, precision);
  std::unique_ptr<Model> model = described.build(builder, std::move(identity));
  source.set_parallel_for({});
  OUTRIDER_CHECK(builder.bytes() == described.plan.weight_bytes, "planned {} weight bytes, loaded {}",
                 described.plan.weight_bytes, builder.bytes());
  return model;
}

}  // namespace outrider
