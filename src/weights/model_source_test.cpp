#include "weights/model_source.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "weights/checkpoint.h"
#include "weights/pack.h"
#include "weights/quantized.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Part {
  std::string name;
  Dtype dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

std::vector<std::byte> floats(FloatType type, const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) store_float(out.data() + i * size_of(type), type, values[i]);
  return out;
}

void write_parts(const std::filesystem::path& path, const std::vector<Part>& parts) {
  std::vector<StoredTensor> tensors;
  for (const Part& part : parts) tensors.push_back({part.name, part.dtype, part.shape, 0, 0});
  SafetensorsWriter writer(path, tensors, {{"format", "mlx"}});
  for (const Part& part : parts) writer.write(part.name, 0, part.data);
  writer.commit();
}

// Quantized module of n rows and width k, bf16 scales.
std::vector<Part> quantized(const std::string& path, int bits, int group, std::int64_t n, std::int64_t k) {
  const auto values = test_values(9, static_cast<std::size_t>(n * k));
  std::vector<std::uint8_t> codes(values.size());
  std::vector<float> scales, biases;
  for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(group)) {
    const AffineGroup made =
        quantize_affine(std::span(values).subspan(at, static_cast<std::size_t>(group)), bits, &codes[at]);
    scales.push_back(made.scale);
    biases.push_back(made.bias);
  }
  std::vector<std::byte> packed(static_cast<std::size_t>(n * k * bits / 8));
  pack_codes(codes, bits, packed.data());
  return {{path + ".weight", Dtype::U32, {n, k * bits / 32}, packed},
          {path + ".scales", Dtype::BF16, {n, k / group}, floats(FloatType::bf16, scales)},
          {path + ".biases", Dtype::BF16, {n, k / group}, floats(FloatType::bf16, biases)}};
}

std::string load_error(const TestDirectory& dir, const std::string& path, std::int64_t n, std::int64_t k) {
  return message_of([&] { open_model_source(dir.path())->load_matrix(path, n, k, Precision::packed); });
}

TEST(CanonicalNames, FollowTheTableOfPrefixes) {
  EXPECT_EQ(canonical_name("model.language_model.layers.0.x"), "model.layers.0.x");
  EXPECT_EQ(canonical_name("language_model.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(canonical_name("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(canonical_name("language_model.mtp.fc.weight"), "mtp.fc.weight");
  EXPECT_EQ(canonical_name("model.mtp.fc.weight"), "mtp.fc.weight");
  EXPECT_EQ(canonical_name("mtp.fc.weight"), "mtp.fc.weight");
  EXPECT_EQ(canonical_name("model.visual.x"), "");
  EXPECT_EQ(canonical_name("vision_tower.x"), "");
  EXPECT_EQ(canonical_name("transformer.h.0"), "transformer.h.0");
  EXPECT_EQ(canonical_module("language_model.lm_head"), "lm_head");
  EXPECT_EQ(canonical_module("lm_head"), "lm_head");
}

TEST(ModelDirectory, LoadsMixedPrecisionWithTiesOverridesAndBookkeeping) {
  TestDirectory dir;
  dir.write(
      "config.json",
      R"({"model_type":"llama","quantization":{"group_size":32,"bits":4,"model.b":{"bits":8,"group_size":64},"model.float":{"bits":8}}})");
  dir.write("generation_config.json", "{broken");
  std::vector<Part> parts = quantized("language_model.model.a", 4, 32, 20, 64);
  for (const Part& part : quantized("model.b", 8, 64, 7, 128)) parts.push_back(part);
  parts.push_back({"model.float.weight", Dtype::F16, {3, 5}, floats(FloatType::f16, test_values(1, 15))});
  parts.push_back({"model.a.bias", Dtype::F32, {20}, floats(FloatType::f32, test_values(2, 20))});
  parts.push_back({"model.norm.weight", Dtype::BF16, {4}, floats(FloatType::bf16, {1, 2, 3, 4})});
  parts.push_back({"visual.x", Dtype::BF16, {4}, floats(FloatType::bf16, {1, 2, 3, 4})});
  write_parts(dir / "model.safetensors", parts);
  const auto model = open_model_source(dir.path());
  EXPECT_TRUE(model->generation_config().is_null());
  EXPECT_TRUE(model->has("model.a.weight"));
  EXPECT_FALSE(model->has("lm_head.weight"));
  EXPECT_FALSE(model->has("visual.x"));
  const ModuleInfo a = model->module("model.a", 20, 64), b = model->module("model.b", -1, -1),
                   f = model->module("model.float", 3, 5);
  EXPECT_EQ(a.bits, 4);
  EXPECT_EQ(a.group, 32);
  EXPECT_TRUE(a.has_bias);
  EXPECT_EQ(b.bits, 8);
  EXPECT_EQ(b.k, 128);
  EXPECT_EQ(f.kind, PackedKind::dense);
  EXPECT_EQ(f.type, FloatType::f16);
  EXPECT_THAT(model->unused_tensors(), ElementsAre("model.norm.weight"));
  EXPECT_EQ(model->load_vector("model.norm.weight", 4).as<float>()[3], 4.0f);
  EXPECT_THAT(model->unused_tensors(), IsEmpty());
  const Unpacked packed = unpack(model->load_matrix("model.b", 7, 128, Precision::packed).view);
  const auto values = test_values(9, 7 * 128);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(static_cast<float>(packed.codes[i]) * packed.scales[i / 64] + packed.biases[i / 64], values[i], 0.02f);
}

TEST(ModelDirectory, NamesThePathOfWrongQuantizationParameters) {
  TestDirectory dir;
  write_parts(dir / "model.safetensors", quantized("model.a", 4, 32, 20, 64));
  dir.write("config.json", R"({"quantization":{"group_size":64,"bits":4}})");
  EXPECT_THAT(load_error(dir, "model.a", 20, 64),
              HasSubstr("tensor 'model.a.weight': weight [20, 8] and scales [20, 2] do not fit 4 bits, group 64 at "
                        "width 64; only 4 bits, group 32 fit"));
  dir.write("config.json", R"({"quantization":{"group_size":32,"bits":4,"model.a":false}})");
  EXPECT_THAT(load_error(dir, "model.a", 20, 64), HasSubstr("says false for 'model.a'"));
  dir.write("config.json", "{}");
  EXPECT_THAT(load_error(dir, "model.a", 20, 64), HasSubstr("holds scales of 'model.a'"));
  dir.write("config.json", R"({"quantization":{"mode":"mxfp4"}})");
  EXPECT_THAT(load_error(dir, "model.a", 20, 64),
              HasSubstr("tensor 'model.a.scales': is BF16 [20, 2] (weight [20, 8] in mode mxfp4 needs U8 [20, 2]) | "
                        "correct \"quantization\" in config.json"));
}

TEST(ModelDirectory, MissingScalesOrBiasesOrShapesAreNamed) {
  TestDirectory dir;
  dir.write("config.json", R"({"quantization":{"group_size":32,"bits":4}})");
  auto parts = quantized("model.a", 4, 32, 20, 64);
  write_parts(dir / "model.safetensors", {parts[0]});
  EXPECT_THAT(load_error(dir, "model.a", 20, 64), HasSubstr("tensor 'model.a.weight': is U32 without model.a.scales"));
  write_parts(dir / "model.safetensors", {parts[0], parts[1]});
  EXPECT_THAT(load_error(dir, "model.a", 20, 64), HasSubstr("tensor 'model.a.biases': is missing"));
  write_parts(dir / "model.safetensors", parts);
  EXPECT_THAT(load_error(dir, "model.a", 21, 64),
              HasSubstr("tensor 'model.a.weight': is [20, 64], the config implies [21, 64]"));
  EXPECT_THAT(load_error(dir, "model.z", 1, 1), HasSubstr("tensor 'model.z.weight': is missing"));
  EXPECT_EQ(load_error(dir, "model.a", 20, 64), "");
}

TEST(ModelDirectory, OnePoisonedScaleIsRefusedWhereItLies) {
  TestDirectory dir;
  dir.write("config.json", R"({"quantization":{"group_size":32,"bits":4}})");
  auto parts = quantized("model.a", 4, 32, 20, 64);
  store_float(parts[2].data.data() + 2 * 25, FloatType::bf16, std::numeric_limits<float>::quiet_NaN());
  parts.push_back(
      {"model.norm.weight", Dtype::F32, {2}, floats(FloatType::f32, {1, std::numeric_limits<float>::infinity()})});
  write_parts(dir / "model.safetensors", parts);
  EXPECT_THAT(load_error(dir, "model.a", 20, 64), HasSubstr("scale or bias of row 12, group 1 is not finite"));
  EXPECT_THAT(message_of([&] { open_model_source(dir.path())->load_vector("model.norm.weight", 2); }),
              HasSubstr("value 1 is inf (accepted: finite)"));
}

// A module of two rows in mode mxfp4 or nvfp4: all codes `code`, all scale bytes `scale`.
std::vector<Part> fp4(const std::string& path, int group, std::uint8_t code, std::uint8_t scale) {
  const auto byte = static_cast<std::byte>(code | code << 4);
  return {{path + ".weight", Dtype::U32, {2, 8}, std::vector<std::byte>(64, byte)},
          {path + ".scales", Dtype::U8, {2, 64 / group}, std::vector<std::byte>(128 / group, std::byte{scale})}};
}

TEST(ModelDirectory, LoadsMxfp4AndNvfp4WithTheirCodesAndRefusesScalesThatAreNone) {
  TestDirectory dir;
  for (const auto& [mode, group, one, none] : {std::tuple{"mxfp4", 32, 127, 255}, {"nvfp4", 16, 0x38, 0xff}}) {
    dir.write("config.json", fmt::format(R"({{"quantization":{{"mode":"{}"}}}})", mode));
    auto parts = fp4("model.a", group, 0xD, static_cast<std::uint8_t>(one));
    write_parts(dir / "model.safetensors", parts);
    {
      const auto model = open_model_source(dir.path());
      const ModuleInfo info = model->module("model.a", 2, 64);
      EXPECT_EQ(info.kind, PackedKind::e2m1);
      EXPECT_EQ(info.bits, 4);
      EXPECT_EQ(info.group, group);
      EXPECT_THAT(model->unused_tensors(), IsEmpty());
      const PackedWeight packed = model->load_matrix("model.a", 2, 64, Precision::packed);
      EXPECT_EQ(packed.view.bytes(), packed_form(info, Precision::packed).bytes());
      const Unpacked got = unpack(packed.view);
      EXPECT_EQ(got.codes, std::vector<std::uint8_t>(128, 0xD));
      EXPECT_EQ(got.scales, std::vector<float>(static_cast<std::size_t>(128 / group), 0.5f));
      EXPECT_EQ(unpack(model->load_matrix("model.a", 2, 64, Precision::f32).view).values,
                std::vector<float>(128, -3.0f));
    }
    EXPECT_THAT(load_error(dir, "model.a", 2, 32), HasSubstr("is [2, 64], the config implies [2, 32]"));
    parts[1].data.back() = static_cast<std::byte>(none);
    write_parts(dir / "model.safetensors", parts);
    EXPECT_THAT(load_error(dir, "model.a", 2, 64),
                HasSubstr(fmt::format("tensor 'model.a.scales': scale byte {} of row 1, group {} gives values that are "
                                      "not finite",
                                      none, 64 / group - 1)));
    parts[1].shape = {2, 64 / group + 1};
    parts[1].data.resize(static_cast<std::size_t>(2 * (64 / group + 1)));
    write_parts(dir / "model.safetensors", parts);
    EXPECT_THAT(load_error(dir, "model.a", 2, 64),
                HasSubstr(fmt::format("is U8 [2, {}] (weight [2, 8] in mode {} needs U8 [2, {}])", 64 / group + 1, mode,
                                      64 / group)));
    parts[1].dtype = Dtype::I8;
    write_parts(dir / "model.safetensors", parts);
    EXPECT_THAT(load_error(dir, "model.a", 2, 64), HasSubstr("'model.a.scales': is I8 "));
  }
  // 12 codes of 4 bits are no whole group.
  dir.write("config.json", R"({"quantization":{"mode":"mxfp4"}})");
  write_parts(dir / "model.safetensors", {{"model.a.weight", Dtype::U32, {1, 5}, std::vector<std::byte>(20)},
                                          {"model.a.scales", Dtype::U8, {1, 1}, {std::byte{127}}}});
  EXPECT_THAT(load_error(dir, "model.a", 1, 40), HasSubstr("is U8 [1, 1] (weight [1, 5] in mode mxfp4"));
}

TEST(ModelDirectory, TheGlobalScaleOfNvfp4MultipliesTheOthers) {
  TestDirectory dir;
  dir.write("config.json", R"({"quantization":{"mode":"nvfp4","model.b":{"mode":"mxfp4"}}})");
  const auto with = [&](std::vector<std::int64_t> shape, std::vector<float> global) {
    std::vector<Part> parts = fp4("model.a", 16, 2, 0x38);
    parts.push_back({"model.a.global_scale", Dtype::F32, std::move(shape), floats(FloatType::f32, global)});
    for (Part& part : fp4("model.b", 32, 2, 127)) parts.push_back(part);
    parts.push_back({"model.b.global_scale", Dtype::F32, {}, floats(FloatType::f32, {2688})});
    write_parts(dir / "model.safetensors", parts);
  };
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}}) {
    with(shape, {1344});
    const auto model = open_model_source(dir.path());
    EXPECT_EQ(unpack(model->load_matrix("model.a", 2, 64, Precision::packed).view).scales,
              std::vector<float>(8, 0.25f));
    EXPECT_EQ(unpack(model->load_matrix("model.b", 2, 64, Precision::packed).view).scales, std::vector<float>(4, 0.5f));
    // mxfp4 has no such factor: a tensor that nothing reads is not passed over.
    EXPECT_THAT(model->unused_tensors(), ElementsAre("model.b.global_scale"));
  }
  const auto refusal = [&](std::vector<std::int64_t> shape, std::vector<float> global) {
    with(std::move(shape), std::move(global));
    return message_of([&] { open_model_source(dir.path())->module("model.a", 2, 64); });
  };
  EXPECT_THAT(refusal({}, {-1}),
              HasSubstr("tensor 'model.a.global_scale': is -1 (accepted: one finite value, at least"));
  EXPECT_THAT(refusal({1}, {std::numeric_limits<float>::infinity()}), HasSubstr("global_scale': is inf (accepted"));
  EXPECT_THAT(refusal({2}, {1, 1}), HasSubstr("global_scale': is [2] (accepted"));
  EXPECT_THAT(refusal({0}, {}), HasSubstr("global_scale': is [0] (accepted"));
}

TEST(ModelDirectory, Mxfp8LoadsAsExactBf16AndRefusesNan) {
  TestDirectory dir;
  dir.write("config.json", R"({"quantization":{"mode":"mxfp8"}})");
  std::vector<std::byte> codes(64, std::byte{0x39}), scales{std::byte{127}, std::byte{130}};  // 1.125; 2^0, 2^3
  write_parts(dir / "model.safetensors",
              {{"model.a.weight", Dtype::U32, {2, 8}, codes}, {"model.a.scales", Dtype::U8, {2, 1}, scales}});
  {
    const auto model = open_model_source(dir.path());
    EXPECT_EQ(model->module("model.a", 2, 32).type, FloatType::bf16);
    const Unpacked got = unpack(model->load_matrix("model.a", 2, 32, Precision::packed).view);
    EXPECT_EQ(got.values[0], 1.125f);
    EXPECT_EQ(got.values[63], 9.0f);
  }
  scales[1] = std::byte{255};
  write_parts(dir / "model.safetensors",
              {{"model.a.weight", Dtype::U32, {2, 8}, codes}, {"model.a.scales", Dtype::U8, {2, 1}, scales}});
  EXPECT_THAT(load_error(dir, "model.a", 2, 32), HasSubstr("value [1, 0] is not finite"));
}

TEST(ModelDirectory, Mxfp8BelowTheRangeOfBf16IsKeptInF32) {
  TestDirectory dir;
  dir.write("config.json", R"({"quantization":{"mode":"mxfp8"}})");
  // e8m0 0 is 2^-127, not zero (models.md 1.8); 0x09 is the e4m3 subnormal-adjacent 2^-6 * 1.125.
  std::vector<std::byte> codes(32, std::byte{0x09}), scales{std::byte{0}};
  write_parts(dir / "model.safetensors",
              {{"model.a.weight", Dtype::U32, {1, 8}, codes}, {"model.a.scales", Dtype::U8, {1, 1}, scales}});
  const auto model = open_model_source(dir.path());
  EXPECT_EQ(model->module("model.a", 1, 32).type, FloatType::f32);
  EXPECT_EQ(unpack(model->load_matrix("model.a", 1, 32, Precision::packed).view).values[0],
            std::ldexp(1.125f, -6 - 127));
}

TEST(ModelDirectory, AStrayPartOfAModuleStaysUnused) {
  TestDirectory dir;
  dir.write("config.json", R"({"quantization":{"mode":"mxfp8"}})");
  write_parts(dir / "model.safetensors", {{"model.a.weight", Dtype::U32, {1, 8}, std::vector<std::byte>(32)},
                                          {"model.a.scales", Dtype::U8, {1, 1}, {std::byte{127}}},
                                          {"model.a.biases", Dtype::F32, {1, 1}, floats(FloatType::f32, {1})},
                                          {"model.b.weight", Dtype::F32, {1, 2}, floats(FloatType::f32, {1, 2})},
                                          {"model.b.biases", Dtype::F32, {1, 1}, floats(FloatType::f32, {1})}});
  const auto model = open_model_source(dir.path());
  model->module("model.a", 1, 32);
  model->module("model.b", 1, 2);
  EXPECT_THAT(model->unused_tensors(), testing::ElementsAre("model.a.biases", "model.b.biases"));
}

TEST(ModelDirectory, ReadsShardsByIndexByNameAndAlone) {
  TestDirectory dir;
  dir.write("config.json", "{}");
  const Part a{"model.a.weight", Dtype::F32, {1}, floats(FloatType::f32, {1})},
      b{"model.b.weight", Dtype::F32, {1}, floats(FloatType::f32, {2})},
      extra{"model.extra.weight", Dtype::F32, {1}, floats(FloatType::f32, {3})};
  write_parts(dir / "model-00001-of-00002.safetensors", {a, extra});
  write_parts(dir / "model-00002-of-00002.safetensors", {b});
  EXPECT_TRUE(open_model_source(dir.path())->has("model.b.weight"));  // no index: by name
  const auto index = [&](const char* map) {
    dir.write("model.safetensors.index.json", fmt::format(R"({{"metadata":{{"total_size":8}},"weight_map":{}}})", map));
  };
  index(R"({"model.a.weight":"model-00001-of-00002.safetensors","model.b.weight":"model-00002-of-00002.safetensors"})");
  EXPECT_TRUE(open_model_source(dir.path())->has("model.extra.weight"));  // in a listed file, not in the map
  EXPECT_EQ(open_model_source(dir.path())->stored_bytes(), 12u);
  index(R"({"model.a.weight":"model-00002-of-00002.safetensors","model.b.weight":"model-00002-of-00002.safetensors"})");
  EXPECT_THAT(message_of([&] { open_model_source(dir.path()); }),
              HasSubstr("1 tensors are not in the file it names: 'model.a.weight'"));
  index(R"({"model.a.weight":"model-00003-of-00003.safetensors"})");
  EXPECT_THAT(message_of([&] { open_model_source(dir.path()); }),
              HasSubstr("names files that do not exist: 'model-00003-of-00003.safetensors'"));
  std::filesystem::remove(dir / "model.safetensors.index.json");
  write_parts(dir / "model-00002-of-00002.safetensors", {b, a});
  EXPECT_THAT(message_of([&] { open_model_source(dir.path()); }),
              HasSubstr("tensor 'model.a.weight': is in two files"));
  const Part wrapped{"language_model.model.a.weight", Dtype::F32, {1}, floats(FloatType::f32, {1})};
  write_parts(dir / "model-00002-of-00002.safetensors", {b, wrapped});
  EXPECT_THAT(message_of([&] { open_model_source(dir.path()); }), HasSubstr("means the same as 'model.a.weight'"));
}

TEST(ModelDirectory, ForeignEncodingsAreRefusedByName) {
  TestDirectory dir;
  dir.write("config.json", "{}");
  const auto with = [&](const char* name, Dtype dtype) {
    write_parts(dir / "model.safetensors", {{name, dtype, {1, 4}, std::vector<std::byte>(4 * size_of(dtype))}});
    return message_of([&] { open_model_source(dir.path())->module("model.a", -1, -1); });
  };
  EXPECT_THAT(with("model.a.weight_scale_inv", Dtype::F32), HasSubstr("FP8 blocks"));
  EXPECT_THAT(with("model.a.qweight", Dtype::I32), HasSubstr("AWQ or GPTQ"));
  EXPECT_THAT(with("model.a.weight", Dtype::F8_E4M3), HasSubstr("is F8_E4M3 without model.a.scales"));
}

}  // namespace
}  // namespace outrider
