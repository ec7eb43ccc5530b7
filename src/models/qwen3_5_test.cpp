// The Qwen3.5 family: its config, its declaration, the head it brings (models.md sections 1.2, 3.6, 4).
#include "models/qwen3_5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/header_source.h"
#include "models/model_fixture.h"
#include "weights/test_qwen3_5.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Qwen3.5-0.8B as models.md 3.6 has it.
HeaderSource qwen_0_8b() {
  HeaderSource source;
  source.config_json = {
      {"model_type", "qwen3_5_text"}, {"hidden_size", 1024},
      {"num_hidden_layers", 24},      {"num_attention_heads", 8},
      {"num_key_value_heads", 2},     {"head_dim", 256},
      {"intermediate_size", 3584},    {"vocab_size", 248320},
      {"rms_norm_eps", 1e-6},         {"max_position_embeddings", 262144},
      {"linear_num_key_heads", 16},   {"linear_num_value_heads", 16},
      {"linear_key_head_dim", 128},   {"linear_value_head_dim", 128},
      {"linear_conv_kernel_dim", 4},  {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}}},
      {"tie_word_embeddings", true}};
  source.modules["model.embed_tokens"] = quantized(248320, 1024, 8, 64);
  source.vectors = {"model.norm.weight"};
  const auto matrix = [&](const std::string& path, std::int64_t n, std::int64_t k) {
    source.modules[path] = quantized(n, k, 4, 64);
  };
  for (int i = 0; i < 24; ++i) {
    const std::string path = "model.layers." + std::to_string(i);
    for (const char* norm : {".input_layernorm", ".post_attention_layernorm"})
      source.vectors.push_back(path + norm + ".weight");
    matrix(path + ".mlp.gate_proj", 3584, 1024);
    matrix(path + ".mlp.up_proj", 3584, 1024);
    matrix(path + ".mlp.down_proj", 1024, 3584);
    if ((i + 1) % 4 == 0) {
      matrix(path + ".self_attn.q_proj", 4096, 1024);
      matrix(path + ".self_attn.k_proj", 512, 1024);
      matrix(path + ".self_attn.v_proj", 512, 1024);
      matrix(path + ".self_attn.o_proj", 1024, 2048);
      for (const char* norm : {".self_attn.q_norm", ".self_attn.k_norm"})
        source.vectors.push_back(path + norm + ".weight");
      continue;
    }
    matrix(path + ".linear_attn.in_proj_qkv", 6144, 1024);
    matrix(path + ".linear_attn.in_proj_z", 2048, 1024);
    matrix(path + ".linear_attn.in_proj_b", 16, 1024);
    matrix(path + ".linear_attn.in_proj_a", 16, 1024);
    matrix(path + ".linear_attn.out_proj", 1024, 2048);
    for (const char* name : {".conv1d.weight", ".A_log", ".dt_bias", ".norm.weight"})
      source.vectors.push_back(path + ".linear_attn" + name);
  }
  return source;
}

std::string refusal_with(const char* key, const json& value) { return refusal_with(qwen_0_8b(), key, value); }

TEST(Qwen35, DeclaresItsCachesItsStateAndItsTargets) {
  const ModelPlan plan = plan_model(qwen_0_8b(), Precision::packed);
  const Declaration& d = plan.declaration;
  EXPECT_EQ(d.architecture, "qwen3_5_text");
  ASSERT_EQ(d.cache_layers.size(), 24U);
  for (std::size_t i = 0; i < 24; ++i)
    EXPECT_EQ(d.cache_layers[i].kind, (i + 1) % 4 == 0 ? CacheKind::full : CacheKind::recurrent);
  EXPECT_EQ(d.kv.layers, 6);
  EXPECT_EQ(d.kv.token_bytes(), 6U * 2 * 256 * 2 * 2);
  // 18.0 MiB of state and 1.3 MiB of windows per row.
  EXPECT_EQ(d.recurrent.slot_bytes(), 18U * (16 * 128 * 128 + 3 * 6144) * 4);
  EXPECT_EQ(d.lora_targets.size(), 6U * 7 + 18 * 6);
  EXPECT_EQ(d.lora_targets[0].path, "model.layers.0.linear_attn.in_proj_qkv");
  EXPECT_EQ(d.lora_targets[0].out, 6144);
  EXPECT_EQ(d.phases.size(), 7U);
  EXPECT_EQ(d.context_tokens, 262144);
  EXPECT_EQ(d.native_draft, Support::no);
  std::size_t sum = 0;
  std::vector<std::string> kinds;
  for (const auto& [kind, bytes] : plan.bytes_by_kind) {
    kinds.push_back(kind);
    sum += bytes;
  }
  EXPECT_EQ(sum, plan.weight_bytes);
  EXPECT_THAT(kinds, testing::UnorderedElementsAre("embedding", "norm", "delta_net", "attention", "mlp"));
}

TEST(Qwen35, ValuesOutsideTheGraphAreRefusedByKeyAndValue) {
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{{"hidden_act", "gelu"},
                                                                            {"num_experts", 8},
                                                                            {"attn_output_gate", false},
                                                                            {"output_gate_type", "sigmoid"},
                                                                            {"mamba_ssm_dtype", "bfloat16"},
                                                                            {"mtp_use_dedicated_embeddings", true},
                                                                            {"mtp_num_hidden_layers", 2},
                                                                            {"quantize_activations", true},
                                                                            {"attention_bias", true},
                                                                            {"linear_num_value_heads", 24},
                                                                            {"linear_conv_kernel_dim", 0},
                                                                            {"num_key_value_heads", 3},
                                                                            {"layer_types", json::array({"sliding"})},
                                                                            {"hidden_size", 1 << 24},
                                                                            {"full_attention_interval", 0},
                                                                            {"head_dim", 6}})
    EXPECT_THAT(refusal_with(key, value), HasSubstr(key)) << value;
  for (const char* gate : {"silu", "swish"}) EXPECT_EQ(refusal_with("output_gate_type", gate), "accepted");
  HeaderSource both = qwen_0_8b();
  both.config_json["full_attention_interval"] = 4;
  both.config_json["layer_types"] = std::vector<std::string>(24, "linear_attention");
  EXPECT_THAT(refusal(both), HasSubstr("full_attention_interval = 4 implies"));
  EXPECT_THAT(refusal_with("architectures", json::array({"Qwen3_5ForConditionalGeneration"})), HasSubstr("contradict"));
  HeaderSource short_one = qwen_0_8b();
  short_one.modules.erase("model.layers.5.linear_attn.in_proj_a");
  EXPECT_THAT(refusal(short_one), HasSubstr("model.layers.5.linear_attn.in_proj_a.weight"));
}

TEST(Qwen35, ThePartOfAHeadThatTurnsIsReadFromItsThreePlaces) {
  const auto rotated = [](const json& changes) {
    json config = qwen_0_8b().config_json;
    config.merge_patch(changes);
    return read_qwen3_5_config(ConfigReader(config, "config.json"), "qwen3_5_text", LmHead::absent).rope.rotated;
  };
  EXPECT_EQ(rotated(json::object()), 64);
  EXPECT_EQ(rotated({{"partial_rotary_factor", 0.5}}), 128);
  EXPECT_EQ(rotated({{"partial_rotary_factor", 0.5}, {"rope_parameters", {{"partial_rotary_factor", 0.125}}}}), 32);
}

TEST(Qwen35, TheHeadIsLoadedWithItsTapAndIdentityAndOnlyWhenReady) {
  TemporaryDirectory dir;
  json config = TinyQwen::config();
  config["mtp_hidden_tap"] = "pre_norm";
  write_qwen(dir.path(), TinyQwen::whole(), {}, config);
  Runner runner(dir.path(), Precision::packed);
  EXPECT_EQ(runner.declaration().native_draft, Support::yes);
  const NativeDraft* draft = runner.model->native_draft();
  ASSERT_NE(draft, nullptr);
  EXPECT_EQ(draft->tap, HiddenTap::pre_norm);
  EXPECT_EQ(draft->identity.size(), 64U);
  EXPECT_EQ(draft->weights.fc.k(), 2 * TinyQwen::kE);
  EXPECT_EQ(draft->weights.self_attn.shape.gate, AttentionGate::sigmoid);
  EXPECT_EQ(draft->head, draft->embed_tokens);
  const ModelPlan plan = plan_model(*runner.source, Precision::packed);
  EXPECT_EQ(plan.bytes_by_kind.back().first, "mtp");

  write_qwen(dir.path(), TinyQwen::trunk(), {}, config);
  EXPECT_EQ(Runner(dir.path(), Precision::packed).model->native_draft(), nullptr);
}

TEST(Qwen35, AHeadOfAnotherShapeOrWithMoreTensorsIsRefused) {
  TemporaryDirectory dir;
  TinyTensors narrow = TinyQwen::whole();
  narrow["mtp.fc.weight"] = {{64, 64}, std::vector<float>(64 * 64)};
  const auto message = [&](const TinyTensors& tensors) -> std::string {
    try {
      return refusal(*open_model_source(write_qwen(dir.path(), tensors)));
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_THAT(message(narrow), HasSubstr("mtp.fc.weight': is [64, 64], the config implies [64, 128]"));
  TinyTensors more = TinyQwen::whole();
  more["mtp.embed_tokens.weight"] = more.at("model.embed_tokens.weight");
  EXPECT_THAT(message(more), HasSubstr("1 tensors are of no part of an MTP head (mtp.embed_tokens.weight)"));
}

// The promise of one form: bytes of logits do not depend on the layout the weights were stored in.
TEST(Qwen35, LayoutsOfTheSameWeightsGiveTheSameBytes) {
  TemporaryDirectory hf, mlx;
  write_qwen(hf.path(), TinyQwen::trunk(), {{"format", "pt"}});
  write_qwen(mlx.path(), in_mlx_layout(TinyQwen::trunk()), {{"format", "mlx"}});
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4};
  for (const Precision precision : {Precision::packed, Precision::f32}) {
    Runner a(hf.path(), precision), b(mlx.path(), precision);
    const std::vector<float> logits = a.run(ids).logits;
    EXPECT_EQ(logits, b.run(ids).logits);
    EXPECT_GT(*std::max_element(logits.begin(), logits.end()), 0.0f);
  }
}

TEST(Qwen35, TheEpsilonOfTheDeltaNormsFollowsTheRecord) {
  TemporaryDirectory dir;
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9};
  const auto logits = [&](const TinyMetadata& metadata) {
    write_qwen(dir.path(), TinyQwen::trunk(), metadata);
    return Runner(dir.path(), Precision::f32).run(ids).logits;
  };
  EXPECT_EQ(logits({}), logits({{"outrider.l2_eps", "hf"}}));
  EXPECT_NE(logits({}), logits({{"outrider.l2_eps", "mlx"}}));
}

}  // namespace
}  // namespace outrider
