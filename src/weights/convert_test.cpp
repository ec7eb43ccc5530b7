#include "weights/convert.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "weights/checkpoint.h"
#include "weights/json_strict.h"
#include "weights/pack.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

using testing::HasSubstr;

constexpr const char* kDown = "model.layers.0.mlp.down_proj";

// Packed bytes of every matrix of the tiny llama are equal in both sources.
void expect_equal_models(ModelSource& a, ModelSource& b) {
  for (const char* path : {"model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                           "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj",
                           "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", kDown}) {
    const PackedWeight x = a.load_matrix(path, -1, -1, Precision::packed),
                       y = b.load_matrix(path, -1, -1, Precision::packed);
    ASSERT_EQ(x.storage.size(), y.storage.size()) << path;
    EXPECT_EQ(std::memcmp(x.storage.data(), y.storage.data(), x.storage.size()), 0) << path;
  }
  for (const char* name : {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                           "model.layers.0.post_attention_layernorm.weight"}) {
    const AlignedBuffer x = a.load_vector(name, 64), y = b.load_vector(name, 64);
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size()), 0) << name;
  }
}

TEST(Convert, GgufOfEveryTypeKeepsItsCodesAndScales) {
  for (const GgufType type : {GgufType::F32, GgufType::F16, GgufType::BF16, GgufType::Q4_0, GgufType::Q4_1,
                              GgufType::Q5_0, GgufType::Q5_1, GgufType::Q8_0, GgufType::MXFP4}) {
    TestDirectory dir;
    write_gguf(dir / "m.gguf", TinyLlama::gguf(type));
    ConvertOptions options;
    options.extra_files = {{"tokenizer.json", "{}"}};
    const ConvertResult result = convert(dir / "m.gguf", dir / "new" / "out", options);
    EXPECT_EQ(result.out, dir.path() / "new" / "out");
    const auto before = open_model_source(dir / "m.gguf"), after = open_model_source(result.out);
    expect_equal_models(*before, *after);
    EXPECT_EQ(after->stored_bytes(), result.bytes);
    EXPECT_EQ(read_text_file(result.out / "tokenizer.json"), "{}");
    EXPECT_EQ(after->generation_config(), before->generation_config());
    EXPECT_EQ(after->config()["num_key_value_heads"], 2);
    const auto metadata = Checkpoint(result.out).metadata();
    EXPECT_EQ(metadata.at("format"), "mlx");
    EXPECT_EQ(metadata.at("outrider.layout"), "mlx");
    EXPECT_EQ(metadata.at("outrider.source_sha256").size(), 64u);
  }
}

TEST(Convert, MixedTypesBecomeADefaultAndOverrides) {
  TestDirectory dir;
  GgufContents file = TinyLlama::gguf(GgufType::Q4_1);
  file.tensors[0].type = GgufType::Q8_0;
  file.tensors[0].data = gguf_encode(GgufType::Q8_0, test_values(0, 40 * 64));
  write_gguf(dir / "m.gguf", file);
  const ConvertResult result = convert(dir / "m.gguf", dir / "out", {});
  const auto config = read_json_file(result.out / "config.json");
  EXPECT_EQ(config["quantization"], (nlohmann::json{{"bits", 4},
                                                    {"group_size", 32},
                                                    {"mode", "affine"},
                                                    {"model.embed_tokens", {{"bits", 8}, {"group_size", 32}}}}));
  expect_equal_models(*open_model_source(dir / "m.gguf"), *open_model_source(result.out));
}

TEST(Convert, Mxfp4AndNvfp4PassThroughByteForByteAndAffineCanBeAskedOfThem) {
  TestDirectory dir;
  dir.write("in/config.json", R"({"model_type":"llama","quantization":{"mode":"nvfp4","model.b":{"mode":"mxfp4"},
      "model.c":{"mode":"mxfp8"},"model.d":{"mode":"affine","bits":8,"group_size":32}}})");
  const auto bytes = [](std::size_t count, std::uint8_t first) {
    std::vector<std::byte> out(count);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>((first + i) % 120);
    return out;
  };
  const float global = 100.0f;
  std::vector<std::byte> scale(4);
  store_float(scale.data(), FloatType::f32, global);
  const std::map<std::string, std::pair<StoredTensor, std::vector<std::byte>>> parts = {
      {"model.a.global_scale", {{"", Dtype::F32, {}, 0, 0}, scale}},
      {"model.a.scales", {{"", Dtype::U8, {3, 4}, 0, 0}, bytes(12, 40)}},
      {"model.a.weight", {{"", Dtype::U32, {3, 8}, 0, 0}, bytes(96, 1)}},
      {"model.b.scales", {{"", Dtype::U8, {3, 2}, 0, 0}, bytes(6, 100)}},
      {"model.b.weight", {{"", Dtype::U32, {3, 8}, 0, 0}, bytes(96, 9)}},
      {"model.c.scales", {{"", Dtype::U8, {3, 2}, 0, 0}, bytes(6, 100)}},
      {"model.c.weight", {{"", Dtype::U32, {3, 16}, 0, 0}, bytes(192, 5)}},
      {"model.e.scales", {{"", Dtype::U8, {3, 4}, 0, 0}, bytes(12, 60)}},
      {"model.e.weight", {{"", Dtype::U32, {3, 8}, 0, 0}, bytes(96, 7)}},
  };
  std::vector<StoredTensor> tensors;
  for (const auto& [name, part] : parts) tensors.push_back({name, part.first.dtype, part.first.shape, 0, 0});
  SafetensorsWriter writer(dir / "in/model.safetensors", tensors, {});
  for (const auto& [name, part] : parts) writer.write(name, 0, part.second);
  writer.commit();

  const ConvertResult result = convert(dir / "in", dir / "out", {});
  const SafetensorsFile out(result.out / "model.safetensors");
  for (const auto& [name, part] : parts) {
    if (name.starts_with("model.c")) continue;
    const StoredTensor* found = out.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->shape, part.first.shape) << name;
    const auto written = out.bytes(*found);
    EXPECT_TRUE(std::equal(written.begin(), written.end(), part.second.begin(), part.second.end())) << name;
  }
  EXPECT_EQ(read_json_file(result.out / "config.json")["quantization"],
            (nlohmann::json{{"bits", 4},
                            {"group_size", 16},
                            {"mode", "nvfp4"},
                            {"model.b", {{"bits", 4}, {"group_size", 32}, {"mode", "mxfp4"}}}}));
  const auto before = open_model_source(dir / "in"), after = open_model_source(result.out);
  for (const char* path : {"model.a", "model.b", "model.c", "model.e"}) {  // c: the floats that mxfp8 means
    const PackedWeight x = before->load_matrix(path, 3, 64, Precision::packed),
                       y = after->load_matrix(path, 3, 64, Precision::packed);
    ASSERT_EQ(x.storage.size(), y.storage.size()) << path;
    EXPECT_EQ(std::memcmp(x.storage.data(), y.storage.data(), x.storage.size()), 0) << path;
  }

  ConvertOptions affine;
  affine.overrides = {"model.a=8/64"};
  const ConvertResult asked = convert(dir / "in", dir / "asked", affine);
  const auto again = open_model_source(asked.out);
  EXPECT_EQ(again->module("model.a", 3, 64).kind, PackedKind::affine);
  EXPECT_EQ(again->module("model.a", 3, 64).type, FloatType::bf16);
  EXPECT_EQ(again->module("model.b", 3, 64).kind, PackedKind::e2m1);
  const Unpacked x = unpack(before->load_matrix("model.a", 3, 64, Precision::f32).view),
                 y = unpack(again->load_matrix("model.a", 3, 64, Precision::f32).view);
  float largest = 0;
  for (const float value : x.values) largest = std::max(largest, std::fabs(value));
  for (std::size_t i = 0; i < x.values.size(); ++i) ASSERT_NEAR(x.values[i], y.values[i], 0.03f * largest);
}

TEST(Convert, QuantizesFloatsWithOverridesWhereTheLastMatchWins) {
  TestDirectory dir;
  write_gguf(dir / "m.gguf", TinyLlama::gguf(GgufType::F32));
  ConvertOptions options;
  options.q_bits = 4;
  options.overrides = {"*.mlp.*=8", "*down_proj=6/32", "*v_proj=16"};
  const ConvertPlan plan = plan_convert(dir / "m.gguf", options);
  std::map<std::string, std::string> kinds;
  for (const ConvertItem& item : plan.items)
    kinds[item.name] = fmt::format("{} {}/{}", item.kind, item.bits, item.group);
  EXPECT_EQ(kinds["model.embed_tokens"], "affine 4/64");
  EXPECT_EQ(kinds["model.layers.0.mlp.up_proj"], "affine 8/64");
  EXPECT_EQ(kinds[kDown], "affine 6/32");
  EXPECT_EQ(kinds["model.layers.0.self_attn.v_proj"], "f32 0/0");
  EXPECT_EQ(kinds["model.norm.weight"], "f32 0/0");
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  const ConvertResult result = convert(dir / "m.gguf", dir / "out", options);
  EXPECT_EQ(result.bytes, plan.bytes);
  EXPECT_EQ(result.tensors, plan.tensors);
  const auto after = open_model_source(result.out);
  EXPECT_EQ(after->stored_bytes(), plan.bytes);
  const ModuleInfo down = after->module(kDown, 64, 96);
  EXPECT_EQ(down.bits, 6);
  const Unpacked got = unpack(after->load_matrix(kDown, 64, 96, Precision::f32).view);
  const auto values = test_values(7, 64 * 96);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(got.values[i], values[i], 2.0f / 63);
}

TEST(Convert, ModulesWhoseWidthIsNoMultipleOfTheGroupStayFloat) {
  TestDirectory dir;
  write_gguf(dir / "m.gguf", TinyLlama::gguf(GgufType::F16));
  ConvertOptions options;
  options.q_bits = 8;
  options.q_group_size = 64;
  const ConvertResult result = convert(dir / "m.gguf", dir / "out", options);
  const auto after = open_model_source(result.out);
  EXPECT_EQ(after->module(kDown, 64, 96).kind, PackedKind::dense);  // 96 = 1.5 groups
  EXPECT_EQ(after->module("model.layers.0.mlp.up_proj", 96, 64).bits, 8);
  EXPECT_EQ(after->module("model.layers.0.mlp.up_proj", 96, 64).type, FloatType::f16);
}

TEST(Convert, DirectoryIsCopiedWithItsTextAndIdempotentWhenQuantizedAlike) {
  TestDirectory dir;
  write_gguf(dir / "m.gguf", TinyLlama::gguf(GgufType::F32));
  ConvertOptions four;
  four.q_bits = 4;
  four.q_group_size = 32;
  convert(dir / "m.gguf", dir / "a", four);
  dir.write("a/tokenizer.json", "{\"x\": 1}");
  dir.write("a/chat_template.jinja", "t");
  dir.write("a/notes.txt", "not copied");
  for (const auto& options : {ConvertOptions{}, four}) {
    const ConvertResult again = convert(dir / "a", dir / "b", options);
    expect_equal_models(*open_model_source(dir / "a"), *open_model_source(again.out));
    EXPECT_EQ(read_text_file(again.out / "tokenizer.json"), "{\"x\": 1}");
    EXPECT_TRUE(std::filesystem::exists(again.out / "chat_template.jinja"));
    EXPECT_TRUE(std::filesystem::exists(again.out / "generation_config.json"));
    EXPECT_FALSE(std::filesystem::exists(again.out / "notes.txt"));
    EXPECT_EQ(read_text_file(again.out / "config.json"), read_text_file(dir / "a/config.json"));
    std::filesystem::remove_all(again.out);
  }
}

TEST(Convert, SplitsIntoShardsWithAnIndex) {
  TestDirectory dir;
  write_gguf(dir / "m.gguf", TinyLlama::gguf(GgufType::Q8_0));
  ConvertOptions options;
  options.max_shard_bytes = 8000;
  const ConvertResult result = convert(dir / "m.gguf", dir / "out", options);
  const auto index = read_json_file(result.out / "model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], result.bytes);
  EXPECT_EQ(index["weight_map"].size(), result.tensors);
  EXPECT_GT(Checkpoint(result.out).files().size(), 2u);
  expect_equal_models(*open_model_source(dir / "m.gguf"), *open_model_source(result.out));
}

TEST(Convert, CancelledOrFailedLeavesNothing) {
  TestDirectory dir;
  GgufContents file = TinyLlama::gguf(GgufType::Q4_0);
  write_gguf(dir / "m.gguf", file);
  const auto entries = [&] { return std::distance(std::filesystem::directory_iterator(dir.path()), {}); };
  for (int calls = 0; calls < 14; ++calls) {
    ConvertOptions options;
    options.cancelled = [left = calls]() mutable { return left-- == 0; };
    const std::string message = message_of([&] { convert(dir / "m.gguf", dir / "out", options); });
    EXPECT_THAT(message, HasSubstr("conversion cancelled")) << calls;
    EXPECT_EQ(entries(), 1) << calls;
  }
  // A scale that is not finite, found in the middle.
  store_float(file.tensors[5].data.data(), FloatType::f16, std::numeric_limits<float>::infinity());
  write_gguf(dir / "m.gguf", file);
  EXPECT_THAT(message_of([&] { convert(dir / "m.gguf", dir / "out", {}); }),
              HasSubstr("tensor 'blk.0.ffn_gate.weight': a scale of row 0 is not finite"));
  EXPECT_EQ(entries(), 1);
}

TEST(Convert, RefusesBadOptionsAndOccupiedTargets) {
  TestDirectory dir;
  write_gguf(dir / "m.gguf", TinyLlama::gguf(GgufType::F16));
  const auto with = [&](std::optional<int> bits, int group, std::vector<std::string> overrides) {
    ConvertOptions options;
    options.q_bits = bits;
    options.q_group_size = group;
    options.overrides = std::move(overrides);
    return message_of([&] { plan_convert(dir / "m.gguf", options); });
  };
  EXPECT_THAT(with(7, 64, {}), HasSubstr("q_bits 7 (accepted: 2, 3, 4, 5, 6, 8)"));
  EXPECT_THAT(with(4, 48, {}), HasSubstr("q_group_size 48 (accepted: 32, 64, 128)"));
  for (const char* text : {"x", "=4", "x=", "x=9", "x=4/", "x=4/7", "x=4x"})
    EXPECT_THAT(with(4, 64, {text}), HasSubstr("is not PATTERN=BITS[/GROUP]")) << text;
  EXPECT_THAT(with(4, 64, {"*.nothing=8"}), HasSubstr("pattern '*.nothing' matches no module"));
  dir.write("full/file", "x");
  EXPECT_THAT(message_of([&] { convert(dir / "m.gguf", dir / "full", {}); }),
              HasSubstr("exists and is not an empty directory"));
  EXPECT_THAT(message_of([&] { convert(dir / "m.gguf", dir / "m.gguf", {}); }),
              HasSubstr("exists and is not an empty directory"));
  std::filesystem::create_directory(dir / "empty");
  EXPECT_EQ(message_of([&] { convert(dir / "m.gguf", dir / "empty", {}); }), "");
  EXPECT_TRUE(std::filesystem::exists(dir / "empty" / "config.json"));
}

}  // namespace
}  // namespace outrider
