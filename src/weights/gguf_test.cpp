#include "weights/gguf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "weights/gguf_blocks.h"
#include "weights/gguf_llama.h"
#include "weights/safetensors.h"
#include "weights/stored_model.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

using testing::HasSubstr;

const SafetensorsFile& golden() {
  static const SafetensorsFile file(OUTRIDER_SOURCE_DIR "/oracles/goldens/weights/gguf.safetensors");
  return file;
}

float golden_value(const std::string& key, std::size_t i) {
  return load_float(golden().bytes(*golden().find(key)).data() + 4 * i, FloatType::f32);
}

// Row of 256 values of a golden tensor as we decode it.
std::vector<float> decoded(GgufType type, const std::byte* row, const GgufImport& import) {
  std::vector<std::uint8_t> codes(256);
  std::vector<std::byte> scales(8 * 4), biases(8 * 4);
  EXPECT_TRUE(decode_row(type, row, FloatType::f32, affine_bits(type, import), codes, scales.data(), biases.data()));
  std::vector<float> out(256);
  for (std::size_t j = 0; j < 256; ++j)
    out[j] = std::fma(static_cast<float>(codes[j]), load_float(scales.data() + j / 32 * 4, FloatType::f32),
                      load_float(biases.data() + j / 32 * 4, FloatType::f32));
  return out;
}

TEST(GgufBlocks, LosslessTypesGiveTheValuesOfTheGgufPackage) {
  for (const GgufType type : {GgufType::Q4_0, GgufType::Q4_1, GgufType::Q5_0, GgufType::Q5_1, GgufType::Q8_0,
                              GgufType::Q4_K, GgufType::Q5_K}) {
    const std::string name(name_of(type));
    const StoredTensor& blocks = *golden().find(name + ".blocks");
    for (std::int64_t row = 0; row < blocks.shape[0]; ++row) {
      const auto values = decoded(type, golden().bytes(blocks).data() + row * blocks.shape[1], {});
      for (std::size_t j = 0; j < 256; ++j) {
        const float want = golden_value(name + ".values", static_cast<std::size_t>(row) * 256 + j);
        // Types with an offset: the package rounds the product before it adds; one rounding of terms below 32.
        const bool exact = type == GgufType::Q4_0 || type == GgufType::Q5_0 || type == GgufType::Q8_0;
        ASSERT_NEAR(values[j], want, exact ? 0.0f : 2e-6f * (std::fabs(want) + 8.0f)) << name << " " << row << "," << j;
      }
    }
  }
}

TEST(GgufBlocks, Mxfp4GivesTheValuesOfTheGgufPackageToTheBit) {
  const StoredTensor& blocks = *golden().find("MXFP4.blocks");
  const Fp4Scales fp4{Fp4Mode::mxfp4, std::nullopt};
  for (std::int64_t row = 0; row < blocks.shape[0]; ++row) {
    std::vector<std::uint8_t> codes(256), scales(8);
    decode_mxfp4_row(golden().bytes(blocks).data() + row * blocks.shape[1], codes, scales.data());
    EXPECT_EQ(group_without_values(fp4, codes, scales.data()), std::nullopt);
    for (std::size_t j = 0; j < 256; ++j)
      ASSERT_EQ(static_cast<float>(kE2m1Doubled[codes[j]]) * fp4.halved(scales[j / 32]),
                golden_value("MXFP4.values", static_cast<std::size_t>(row) * 256 + j))
          << row << "," << j;
  }
}

TEST(GgufBlocks, KTypesOfSixteenDequantizeExactlyAndRequantizeWithinHalfAStep) {
  for (const GgufType type : {GgufType::Q2_K, GgufType::Q3_K, GgufType::Q6_K}) {
    const std::string name(name_of(type));
    const StoredTensor& blocks = *golden().find(name + ".blocks");
    for (std::int64_t row = 0; row < blocks.shape[0]; ++row) {
      const std::byte* bytes = golden().bytes(blocks).data() + row * blocks.shape[1];
      std::vector<float> exact(256);
      dequantize_k_row(type, bytes, exact);
      const auto again = decoded(type, bytes, {});
      for (std::size_t g = 0; g < 8; ++g) {
        float low = exact[g * 32], high = low;
        for (std::size_t j = g * 32; j < g * 32 + 32; ++j) {
          const float want = golden_value(name + ".values", static_cast<std::size_t>(row) * 256 + j);
          ASSERT_NEAR(exact[j], want, 1e-6f * (std::fabs(want) + 1.0f)) << name << " " << j;
          low = std::min(low, exact[j]);
          high = std::max(high, exact[j]);
        }
        // The anchored edge may shift the grid by a step at the far edge.
        const float step = (high - low) / 255.0f;
        for (std::size_t j = g * 32; j < g * 32 + 32; ++j)
          ASSERT_NEAR(again[j], exact[j], 1.01f * step) << name << " " << j;
      }
    }
  }
}

TEST(GgufBlocks, ScalesBeyondF16AreKeptAsF32) {
  const std::vector<std::uint8_t> codes(32, 1);
  const auto tensor = [&](GgufType type, float d) {
    return gguf_blocks(type, codes, std::vector<float>{d}, std::vector<float>{0});
  };
  EXPECT_EQ(scale_type_of(GgufType::Q4_0, tensor(GgufType::Q4_0, 8184), {}), FloatType::f16);
  EXPECT_EQ(scale_type_of(GgufType::Q4_0, tensor(GgufType::Q4_0, -8192), {}), FloatType::f32);
  EXPECT_EQ(scale_type_of(GgufType::Q5_0, tensor(GgufType::Q5_0, 4096), {}), FloatType::f32);
  EXPECT_EQ(scale_type_of(GgufType::Q8_0, tensor(GgufType::Q8_0, 511.5f), {}), FloatType::f16);
  EXPECT_EQ(scale_type_of(GgufType::Q8_0, tensor(GgufType::Q8_0, 512), {}), FloatType::f32);
  EXPECT_EQ(scale_type_of(GgufType::Q4_1, tensor(GgufType::Q4_1, 60000), {}), FloatType::f16);
  const auto& q4k = *golden().find("Q4_K.blocks");
  EXPECT_EQ(scale_type_of(GgufType::Q4_K, golden().bytes(q4k), {}), FloatType::f32);
  EXPECT_EQ(scale_type_of(GgufType::Q4_K, golden().bytes(q4k), {ScaleStorage::f16, 8}), FloatType::f16);
}

TEST(GgufBlocks, NonFiniteScalesAreRefused) {
  const std::vector<std::uint8_t> codes(32, 1);
  std::vector<std::uint8_t> out(32);
  std::byte scale[4], bias[4];
  for (const float d : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const auto block = gguf_blocks(GgufType::Q4_1, codes, std::vector<float>{1}, std::vector<float>{d});
    EXPECT_FALSE(decode_row(GgufType::Q4_1, block.data(), FloatType::f16, 4, out, scale, bias));
  }
}

TEST(GgufRead, WritesAndReadsEveryKindOfMetadata) {
  TestDirectory dir;
  GgufContents contents;
  contents.metadata = {{"b", true},
                       {"i", std::int64_t{7}},
                       {"n", std::int64_t{-7}},
                       {"f", 0.5},
                       {"s", std::string("text")},
                       {"lb", std::vector<bool>{true, false}},
                       {"li", std::vector<std::int64_t>{1, -2}},
                       {"lf", std::vector<double>{1.5, -2.5}},
                       {"ls", std::vector<std::string>{"a", ""}}};
  contents.tensors = {{"t", GgufType::F16, {3, 2}, gguf_encode(GgufType::F16, std::vector<float>{1, 2, 3, 4, 5, 6})}};
  write_gguf(dir / "m.gguf", contents);
  const GgufFile file(dir / "m.gguf");
  for (const auto& [key, value] : contents.metadata) EXPECT_TRUE(file.metadata().at(key) == value) << key;
  EXPECT_EQ(file.integer("i", 0, 10), 7);
  EXPECT_EQ(file.number("f"), 0.5);
  EXPECT_EQ(file.texts("ls")->size(), 2u);
  EXPECT_FALSE(file.text("absent").has_value());
  EXPECT_THAT(message_of([&] { file.integer("s", 0, 9); }), HasSubstr("s is 'text' (accepted: an integer 0..9)"));
  EXPECT_THAT(message_of([&] { file.integer("i", 0, 6); }), HasSubstr("i is 7 (accepted: an integer 0..6)"));
  const GgufTensor* t = file.find("t");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(load_float(file.bytes(*t).data() + 10, FloatType::f16), 6.0f);
}

TEST(GgufRead, VersionTwoIsTheSameFormat) {
  auto image = gguf_image(TinyLlama::gguf(GgufType::Q8_0));
  image[4] = std::byte{2};
  EXPECT_EQ(parse_gguf(image, "f").version, 2u);
}

TEST(GgufLlama, BecomesAnEquivalentConfig) {
  TestDirectory dir;
  GgufContents contents = TinyLlama::gguf(GgufType::Q4_0);
  contents.metadata.emplace_back("llama.rope.scaling.type", std::string("linear"));
  contents.metadata.emplace_back("llama.rope.scaling.factor", 4.0);
  contents.metadata.emplace_back("tokenizer.ggml.eot_token_id", std::int64_t{3});
  contents.tensors.push_back({"rope_freqs.weight",
                              GgufType::F32,
                              {8},
                              gguf_encode(GgufType::F32, std::vector<float>{1, 1, 1, 1, 2, 4, 8, 32})});
  write_gguf(dir / "m.gguf", contents);
  const auto model = open_model_source(dir / "m.gguf");
  const auto& config = model->config();
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["head_dim"], 16);
  EXPECT_EQ(config["vocab_size"], 40);
  EXPECT_EQ(config["rope_theta"], 10000.0);
  EXPECT_EQ(config["rope_scaling"], (nlohmann::json{{"rope_type", "linear"}, {"factor", 4.0}}));
  EXPECT_EQ(config["rope_freq_divisors"], (nlohmann::json{1, 1, 1, 1, 2, 4, 8, 32}));
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(model->generation_config()["eos_token_id"], (nlohmann::json{2, 3}));
  EXPECT_TRUE(model->has("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_FALSE(model->has("lm_head.weight"));
  EXPECT_FALSE(model->has("rope_freqs.weight"));
}

TEST(GgufLlama, UnpermutesQAndKRowsAndBiasesAndNothingElse) {
  TestDirectory dir;
  GgufContents contents = TinyLlama::gguf(GgufType::F32);
  const auto bias = test_values(50, 32);
  contents.tensors.push_back({"blk.0.attn_k.bias", GgufType::F32, {32}, gguf_encode(GgufType::F32, bias)});
  write_gguf(dir / "m.gguf", contents);
  const auto model = open_model_source(dir / "m.gguf");
  const auto check = [&](const std::string& path, std::uint32_t seed, std::int64_t heads, std::int64_t n,
                         std::int64_t k) {
    const Unpacked got = unpack(model->load_matrix(path, n, k, Precision::packed).view);
    const auto stored = test_values(seed, static_cast<std::size_t>(n * k));
    const std::int64_t width = heads > 0 ? n / heads : 0;
    for (std::int64_t row = 0; row < n; ++row) {
      std::int64_t from = row;
      if (heads > 0) {  // HF[h*D + s*D/2 + i] = GGUF[h*D + 2i + s]
        const std::int64_t h = row / width, s = row % width / (width / 2), i = row % (width / 2);
        from = h * width + 2 * i + s;
      }
      for (std::int64_t j = 0; j < k; ++j)
        ASSERT_EQ(got.values[static_cast<std::size_t>(row * k + j)], stored[static_cast<std::size_t>(from * k + j)])
            << path;
    }
  };
  check("model.layers.0.self_attn.q_proj", 1, 4, 64, 64);
  check("model.layers.0.self_attn.k_proj", 2, 2, 32, 64);
  check("model.layers.0.self_attn.v_proj", 3, 0, 32, 64);
  check("model.layers.0.mlp.down_proj", 7, 0, 64, 96);
  EXPECT_TRUE(model->module("model.layers.0.self_attn.k_proj", 32, 64).has_bias);
  const AlignedBuffer k_bias = model->load_vector("model.layers.0.self_attn.k_proj.bias", 32);
  EXPECT_EQ(k_bias.as<float>()[1], bias[2]);
  EXPECT_EQ(k_bias.as<float>()[8], bias[1]);
}

TEST(GgufLlama, LoadsEveryTypeWithTheValuesOfItsBlocks) {
  for (const GgufType type : {GgufType::F16, GgufType::BF16, GgufType::Q4_0, GgufType::Q4_1, GgufType::Q5_0,
                              GgufType::Q5_1, GgufType::Q8_0, GgufType::MXFP4}) {
    TestDirectory dir;
    const GgufContents contents = TinyLlama::gguf(type);
    write_gguf(dir / "m.gguf", contents);
    const auto model = open_model_source(dir / "m.gguf");
    const auto values = test_values(7, 64 * 96);
    const Unpacked exact = unpack(model->load_matrix("model.layers.0.mlp.down_proj", 64, 96, Precision::f32).view);
    const PackedWeight packed = model->load_matrix("model.layers.0.mlp.down_proj", 64, 96, Precision::packed);
    const Unpacked back = unpack(packed.view);
    const float step = type == GgufType::F16                              ? 5e-4f
                       : type == GgufType::BF16 || type == GgufType::Q8_0 ? 4.1e-3f
                       : type == GgufType::MXFP4                          ? 0.251f
                                                                          : 0.15f;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(exact.values[i], values[i], step) << name_of(type);
      const float again = packed.view.kind == PackedKind::dense ? back.values[i]
                          : packed.view.kind == PackedKind::e2m1
                              ? static_cast<float>(kE2m1Doubled[back.codes[i]]) * back.scales[i / 32]
                              : std::fma(static_cast<float>(back.codes[i]), back.scales[i / 32], back.biases[i / 32]);
      ASSERT_EQ(again, exact.values[i]) << name_of(type);
    }
    const ModuleInfo info = model->module("model.layers.0.mlp.down_proj", 64, 96);
    const PackedMatrix form = packed_form(info, Precision::packed);
    EXPECT_EQ(form.bytes(), packed.view.bytes());
    EXPECT_EQ(info.kind, type == GgufType::F16 || type == GgufType::BF16 ? PackedKind::dense
                         : type == GgufType::MXFP4                       ? PackedKind::e2m1
                                                                         : PackedKind::affine);
  }
}

TEST(GgufLlama, AnMxfp4ScaleThatIsNoNumberIsRefusedWhereItLies) {
  TestDirectory dir;
  GgufContents contents = TinyLlama::gguf(GgufType::MXFP4);
  contents.tensors[7].data[3 * 17 * 5] = std::byte{255};  // rows of 96 are 3 blocks of 17 bytes
  write_gguf(dir / "m.gguf", contents);
  EXPECT_THAT(
      message_of([&] {
        open_model_source(dir / "m.gguf")->load_matrix("model.layers.0.mlp.down_proj", 64, 96, Precision::packed);
      }),
      HasSubstr("tensor 'blk.0.ffn_down.weight': a scale of row 5 is not finite"));
}

TEST(GgufLlama, SplitFilesNeedTheFullSet) {
  TestDirectory dir;
  GgufContents all = TinyLlama::gguf(GgufType::Q8_0);
  GgufContents first{all.metadata, {all.tensors.begin(), all.tensors.begin() + 4}},
      second{{}, {all.tensors.begin() + 4, all.tensors.end()}};
  for (auto* part : {&first, &second}) {
    part->metadata.emplace_back("split.no", std::int64_t{part == &second});
    part->metadata.emplace_back("split.count", std::int64_t{2});
    part->metadata.emplace_back("split.tensors.count", static_cast<std::int64_t>(all.tensors.size()));
  }
  write_gguf(dir / "m-00001-of-00002.gguf", first);
  EXPECT_THAT(message_of([&] { open_model_source(dir / "m-00001-of-00002.gguf"); }),
              HasSubstr("m-00002-of-00002.gguf"));
  write_gguf(dir / "m-00002-of-00002.gguf", second);
  const auto model = open_model_source(dir / "m-00001-of-00002.gguf");
  EXPECT_TRUE(model->has("model.norm.weight"));
  EXPECT_EQ(model->load_vector("model.norm.weight", 64).size(), 256u);
  EXPECT_THAT(message_of([&] { open_model_source(dir / "m-00002-of-00002.gguf"); }), HasSubstr("is part 2 of 2"));
}

}  // namespace
}  // namespace outrider
