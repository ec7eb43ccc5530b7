#include "models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "models/header_source.h"
#include "models/llama.h"
#include "models/model_fixture.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// MiniCPM5-1B as models.md 2.3 has it: 24 layers, untied, 8-bit embedding and outer layers, 4-bit rest.
HeaderSource minicpm5() {
  HeaderSource source;
  source.config_json = {{"model_type", "llama"},
                        {"architectures", {"LlamaForCausalLM"}},
                        {"hidden_size", 1536},
                        {"num_hidden_layers", 24},
                        {"num_attention_heads", 16},
                        {"num_key_value_heads", 2},
                        {"head_dim", 128},
                        {"intermediate_size", 4608},
                        {"vocab_size", 130560},
                        {"rms_norm_eps", 1e-6},
                        {"rope_theta", 5e6},
                        {"max_position_embeddings", 131072},
                        {"tie_word_embeddings", false}};
  source.modules["model.embed_tokens"] = quantized(130560, 1536, 8, 64);
  source.modules["lm_head"] = quantized(130560, 1536, 4, 64);
  source.vectors = {"model.norm.weight"};
  for (int i = 0; i < 24; ++i) {
    const int bits = i == 0 || i == 23 ? 8 : 4;
    const std::string path = "model.layers." + std::to_string(i);
    source.modules[path + ".self_attn.q_proj"] = quantized(2048, 1536, bits, 64);
    source.modules[path + ".self_attn.k_proj"] = quantized(256, 1536, bits, 64);
    source.modules[path + ".self_attn.v_proj"] = quantized(256, 1536, bits, 64);
    source.modules[path + ".self_attn.o_proj"] = quantized(1536, 2048, bits, 64);
    source.modules[path + ".mlp.gate_proj"] = quantized(4608, 1536, bits, 64);
    source.modules[path + ".mlp.up_proj"] = quantized(4608, 1536, bits, 64);
    source.modules[path + ".mlp.down_proj"] = quantized(1536, 4608, bits, 64);
    source.vectors.push_back(path + ".input_layernorm.weight");
    source.vectors.push_back(path + ".post_attention_layernorm.weight");
  }
  return source;
}

std::string refusal_with(const char* key, const json& value) { return refusal_with(minicpm5(), key, value); }

TEST(Registry, MiniCpm5DeclaresItsCachesAndTargets) {
  const ModelPlan plan = plan_model(minicpm5(), Precision::packed);
  const Declaration& d = plan.declaration;
  EXPECT_EQ(d.architecture, "llama");
  ASSERT_EQ(d.lora_targets.size(), 168U);
  EXPECT_EQ(d.lora_targets[0].path, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(d.lora_targets[0].in, 1536);
  EXPECT_EQ(d.lora_targets[0].out, 2048);
  EXPECT_EQ(d.lora_targets[167].path, "model.layers.23.mlp.down_proj");
  EXPECT_EQ(d.lora_targets[167].in, 4608);
  ASSERT_EQ(d.cache_layers.size(), 24U);
  EXPECT_EQ(d.cache_layers[23].model_layer, 23);
  EXPECT_EQ(d.kv.token_bytes(), 24U * 2 * 128 * 2 * 2);
  EXPECT_EQ(d.context_tokens, 131072);
  EXPECT_EQ(d.phases.size(), 7U);
  EXPECT_EQ(plan_model(minicpm5(), Precision::f32).declaration.kv.token_bytes(), 2 * d.kv.token_bytes());
}

TEST(Registry, ADeclarationWithoutPartsOrThatOverclaimsIsRefused) {
  const Declaration good = plan_model(minicpm5(), Precision::packed).declaration;
  LinearShapes graph;
  for (const LoraTarget& target : good.lora_targets) graph[target.path] = {target.out, target.in};
  const auto fault = [&](const std::function<void(Declaration&)>& change) -> std::string {
    Declaration d = good;
    change(d);
    try {
      check_declaration(d, graph);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(fault([](Declaration&) {}), "accepted");
  EXPECT_THAT(fault([](Declaration& d) { d = {}; }), testing::HasSubstr("lacks a name or phases"));
  EXPECT_THAT(fault([](Declaration& d) { d.cache_layers[0].model_layer = 24; }), testing::HasSubstr("layer 24 of 24"));
  EXPECT_THAT(fault([](Declaration& d) { d.cache_layers.pop_back(); }), testing::HasSubstr("23 full cache layers"));
  EXPECT_THAT(fault([](Declaration& d) { d.lora_targets[3].path = "model.layers.0.self_attn.x_proj"; }),
              testing::HasSubstr("x_proj, which the graph lacks"));
  EXPECT_THAT(fault([](Declaration& d) { d.lora_targets[0].out = 1; }),
              testing::HasSubstr("as 1536 -> 1, the graph has 1536 -> 2048"));
  EXPECT_THAT(fault([](Declaration& d) { d.lora_targets[1] = d.lora_targets[0]; }), testing::HasSubstr("twice"));
}

TEST(Registry, MiniCpm5PlanCountsParametersAndBytes) {
  const ModelPlan plan = plan_model(minicpm5(), Precision::packed);
  const std::int64_t layer = 2 * 2048 * 1536 + 2 * 256 * 1536 + 3 * 4608 * 1536;
  EXPECT_EQ(plan.parameters, 2 * 130560 * 1536 + 24 * (layer + 2 * 1536) + 1536);
  // 8 + 32/64 bits per weight of the embedding; 4.5 of the head.
  std::map<std::string, std::size_t> kinds(plan.bytes_by_kind.begin(), plan.bytes_by_kind.end());
  EXPECT_EQ(kinds["embedding"], 130560U * 1536 * 17 / 16);
  EXPECT_EQ(kinds["head"], 130560U * 1536 * 9 / 16);
  EXPECT_EQ(kinds["norm"], (24U * 2 + 1) * 1536 * 4);
  std::size_t sum = 0;
  for (const auto& [kind, bytes] : plan.bytes_by_kind) sum += bytes;
  EXPECT_EQ(plan.weight_bytes, sum);
}

TEST(Registry, ScratchStaysBelowTheFormulaOfTheMemoryContract) {
  const HeaderSource source = minicpm5();
  const ModelPlan plan = plan_model(source, Precision::packed);
  for (const int threads : {1, 2, 16}) {
    const std::unique_ptr<Device> device = make_cpu_device(threads);
    const StepLimits limits{512, 32, 32, 32768};
    AttentionShape shape;
    shape.heads = 16, shape.kv_heads = 2, shape.head_width = 128;
    const std::size_t formula = 512U * 4 * (6 * 1536 + 2 * 4608 + 2 * (16 + 2) * 128) + 32U * 130560 * 4;
    EXPECT_LE(plan_graph(source, plan.precision)->scratch_bytes(*device, limits),
              formula + device->attention_scratch_bytes(512, 32, shape, 32768));
  }
}

TEST(Registry, NamesUnknownAndUnsupportedArchitectures) {
  EXPECT_THAT(refusal_with("model_type", "qwen3_5_moe"),
              HasSubstr("model_type qwen3_5_moe is known, not supported: mixtures of experts"));
  for (const char* name : {"qwen2_moe", "qwen3_moe", "gemma3", "deepseek_v3", "gpt_oss", "phi3", "minicpm", "mixtral"})
    EXPECT_THAT(refusal_with("model_type", name), HasSubstr("is known, not supported: ")) << name;
  EXPECT_THAT(refusal_with("model_type", "frobnicator"),
              HasSubstr("model_type frobnicator is unknown (accepted: llama, mistral, smollm3, qwen2, qwen3, qwen3_5, "
                        "qwen3_5_text)"));
  EXPECT_THAT(refusal_with("model_type", nullptr), HasSubstr("model_type is missing"));
  EXPECT_THAT(refusal_with("architectures", {"MiniCPMForCausalLM"}),
              HasSubstr("architectures is [\"MiniCPMForCausalLM\"] (accepted: LlamaForCausalLM)"));
}

TEST(Registry, RefusesValuesThatWouldChangeTheMathematics) {
  EXPECT_THAT(refusal_with("hidden_act", "gelu"), HasSubstr("hidden_act is \"gelu\" (accepted: silu)"));
  EXPECT_THAT(refusal_with("num_experts", 8), HasSubstr("num_experts is 8"));
  EXPECT_THAT(refusal_with("quantize_activations", true), HasSubstr("quantize_activations is true"));
  EXPECT_THAT(refusal_with("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(refusal_with("rope_scaling", {{"rope_type", "ntk"}, {"factor", 2}}), HasSubstr("rope_scaling.rope_type"));
  EXPECT_THAT(refusal_with("num_key_value_heads", 3), HasSubstr("num_key_value_heads is 3 (accepted: a divisor of"));
  EXPECT_THAT(refusal_with("head_dim", 127), HasSubstr("head_dim is 127 (accepted: an even number"));
  EXPECT_THAT(refusal_with("hidden_size", 0), HasSubstr("hidden_size is 0 (accepted: an integer 1..16777215)"));
  EXPECT_THAT(refusal_with("intermediate_size", 16777216), HasSubstr("intermediate_size is 16777216"));
  EXPECT_THAT(refusal_with("layer_types", {"full_attention"}), HasSubstr("24 entries, one per layer"));
  EXPECT_THAT(refusal_with("layer_types", json(std::vector<std::string>(24, "linear_attention"))),
              HasSubstr("accepted: full_attention, sliding_attention"));
  EXPECT_EQ(refusal_with("some_new_key", 1), "accepted");
  EXPECT_EQ(refusal_with("num_experts", 0), "accepted");
}

json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

TEST(Registry, SlidingWindowsLimitTheContextOrAreRefused) {
  const LlamaFamily* mistral = &kLlamaFamilies[1];
  const LlamaFamily* qwen2 = &kLlamaFamilies[3];
  const json base = with(minicpm5().config_json, "sliding_window", 4096);
  const auto read = [](const json& config, const LlamaFamily& family) {
    return read_llama_config(ConfigReader(config, "config.json"), family, LmHead::present);
  };
  EXPECT_EQ(read(base, *mistral).context_tokens, 4096);
  EXPECT_EQ(read(with(base, "sliding_window", nullptr), *mistral).context_tokens, 131072);
  const json full = with(base, "layer_types", std::vector<std::string>(24, "full_attention"));
  EXPECT_EQ(read(full, *mistral).context_tokens, 131072);
  json sliding = full;
  sliding["layer_types"][3] = "sliding_attention";
  EXPECT_THROW(read(sliding, *mistral), Error);
  EXPECT_THROW(read(sliding, kLlamaFamilies[0]), Error);
  EXPECT_EQ(read(sliding, *qwen2).context_tokens, 131072);
  EXPECT_THROW(read(with(base, "use_sliding_window", true), *qwen2), Error);
  EXPECT_EQ(read(with(base, "use_sliding_window", false), *qwen2).context_tokens, 131072);
}

TEST(Registry, FamiliesDifferInBiasesNormsAndRope) {
  const json base = with(minicpm5().config_json, "attention_bias", true);
  const auto read = [&](std::string_view name, const json& config) {
    for (const LlamaFamily& family : kLlamaFamilies)
      if (family.model_type == name)
        return read_llama_config(ConfigReader(config, "config.json"), family, LmHead::absent);
    ADD_FAILURE() << name;
    return LlamaConfig{};
  };
  EXPECT_EQ(read("llama", base).o_bias, HasBias::yes);
  EXPECT_EQ(read("mistral", base).qkv_bias, HasBias::no);
  EXPECT_EQ(read("qwen2", json(base)).qkv_bias, HasBias::yes);
  EXPECT_EQ(read("qwen2", base).o_bias, HasBias::no);
  EXPECT_EQ(read("qwen3", base).head_norms, HeadNorms::plain);
  const std::vector<bool> by_default = read("smollm3", base).layer_has_rope;
  EXPECT_EQ(std::count(by_default.begin(), by_default.end(), false), 6);
  EXPECT_FALSE(by_default[3]);
  json listed = with(base, "no_rope_layers", std::vector<int>(24, 1));
  listed["no_rope_layers"][5] = 0;
  const std::vector<bool> by_list = read("smollm3", listed).layer_has_rope;
  EXPECT_EQ(std::count(by_list.begin(), by_list.end(), false), 1);
  EXPECT_FALSE(by_list[5]);
  EXPECT_THROW(read("smollm3", with(base, "no_rope_layers", {1, 0})), Error);
}

TEST(Registry, TheHeadIsTiedByKeyElseByTheAbsenceOfItsTensor) {
  json config = minicpm5().config_json;
  const auto head = [&](LmHead lm_head) {
    return read_llama_config(ConfigReader(config, "config.json"), kLlamaFamilies[0], lm_head).head;
  };
  EXPECT_EQ(head(LmHead::present), HeadWeight::own);
  EXPECT_EQ(head(LmHead::absent), HeadWeight::own);  // the key decides; the plan then misses the tensor
  config["tie_word_embeddings"] = true;
  EXPECT_EQ(head(LmHead::present), HeadWeight::tied);
  config.erase("tie_word_embeddings");
  EXPECT_EQ(head(LmHead::present), HeadWeight::own);
  EXPECT_EQ(head(LmHead::absent), HeadWeight::tied);
}

TEST(Registry, ListsMissingAndForeignTensorsTogether) {
  HeaderSource source = minicpm5();
  source.modules.erase("model.layers.7.mlp.up_proj");
  source.vectors.pop_back();
  source.modules["model.layers.7.mlp.experts"] = quantized(8, 64, 4, 64);
  source.vectors.push_back("model.layers.7.self_attn.rotary_emb.inv_freq");  // on the drop list
  const std::string text = refusal(source);
  EXPECT_THAT(text, HasSubstr("2 tensors of the graph are missing (model.layers.7.mlp.up_proj.weight, "
                              "model.layers.23.post_attention_layernorm.weight)"));
  EXPECT_THAT(text, HasSubstr("1 tensors are not part of the graph (model.layers.7.mlp.experts.weight)"));
}

TEST(Registry, ABiasTheConfigDoesNotKnowIsRefused) {
  HeaderSource source = minicpm5();
  source.modules["model.layers.2.self_attn.o_proj"].has_bias = true;
  EXPECT_THAT(refusal(source), HasSubstr("model.layers.2.self_attn.o_proj.bias exists"));
}

// What the plan says of weights and scratch is what the model takes.
TEST(Registry, PlannedBytesAreTheBytesTaken) {
  for (const char* name :
       {"mlx_mixed", "llama_all_bias", "qwen3", "llama_f16", "mlx_b3_g64", "mlx_mxfp4", "mlx_nvfp4", "mlx_mxfp8"})
    for (const Precision precision : {Precision::packed, Precision::f32}) {
      const std::filesystem::path path = goldens() / "models" / name;
      const std::unique_ptr<ModelSource> source = open_model_source(path);
      const ModelPlan plan = plan_model(*source, precision);
      const std::size_t before = memory_use(MemoryPart::weights).now_bytes;
      Runner runner(path, precision, 2, nullptr, 256);
      EXPECT_EQ(memory_use(MemoryPart::weights).now_bytes - before, plan.weight_bytes) << name;
      EXPECT_EQ(runner.model->weight_bytes(), plan.weight_bytes) << name;
      EXPECT_EQ(plan_graph(*source, precision)->scratch_bytes(*runner.device, runner.limits), runner.arena.size())
          << name;
      std::vector<std::int32_t> ids(600);
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 31 % 97);
      runner.run(ids, 256);
      EXPECT_GE(static_cast<double>(runner.arena.peak()), 0.95 * static_cast<double>(runner.arena.size())) << name;
    }
}

}  // namespace
}  // namespace outrider
