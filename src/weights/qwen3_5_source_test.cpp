// Layouts of Qwen3.5 checkpoints (models.md 1.12): each gives the same tensors, and what is unclear is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "weights/convert.h"
#include "weights/panel_source.h"
#include "weights/stored_model.h"
#include "weights/test_qwen3_5.h"

namespace outrider {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kLayer = "model.layers.0.linear_attn.";

std::vector<float> vector_of(ModelSource& source, const std::string& name, std::int64_t n) {
  const AlignedBuffer loaded = source.load_vector(name, n);
  return {loaded.as<float>().begin(), loaded.as<float>().end()};
}

std::vector<float> effective(const TinyTensor& tensor) {
  std::vector<float> out = tensor.values;
  for (float& w : out) w = 1.0f + w;
  return out;
}

// The f32 values of everything a graph asks for, by name.
std::map<std::string, std::vector<float>> all_values(ModelSource& source, const TinyTensors& expected) {
  std::map<std::string, std::vector<float>> out;
  for (const auto& [name, tensor] : expected) {
    if (tensor.shape.size() == 1) {
      out[name] = vector_of(source, name, tensor.shape[0]);
    } else if (tensor.shape.size() == 3) {
      const AlignedBuffer table = source.load_table(name, tensor.shape[0], TinyQwen::kTaps);
      out[name] = {table.as<float>().begin(), table.as<float>().end()};
    } else {
      const PackedWeight packed =
          source.load_matrix(name.substr(0, name.size() - 7), tensor.shape[0], tensor.shape[1], Precision::f32);
      out[name] = unpack(packed.view).values;
    }
  }
  EXPECT_THAT(source.unused_tensors(), testing::IsEmpty());
  return out;
}

std::string refusal(const fs::path& path, const SourceOptions& options = {}) {
  return message_of([&] { open_model_source(path, options); });
}

TEST(QwenLayout, NormsOfTheHfLayoutAreShiftedOnceInF32AndOnlyTheListedOnes) {
  TestDirectory dir;
  const TinyTensors stored = TinyQwen::whole();
  const auto source = open_model_source(write_qwen(dir / "hf", stored, {{"format", "pt"}}));
  ASSERT_NE(source->facts(), nullptr);
  EXPECT_EQ(source->facts()->layout, TrunkLayout::hf);
  EXPECT_EQ(source->facts()->norms, NormCentre::zero);
  const auto read = all_values(*source, stored);
  int shifted = 0;
  for (const auto& [name, tensor] : stored) {
    const bool centred = name.find("norm") != std::string::npos && name != kLayer + "norm.weight";
    EXPECT_EQ(read.at(name), centred ? effective(tensor) : tensor.values) << name;
    shifted += centred ? 1 : 0;
  }
  EXPECT_EQ(shifted, 14);  // 7 of the trunk, 7 of the head
}

TEST(QwenLayout, EveryLayoutOfTheSameWeightsReadsAlike) {
  TestDirectory dir;
  const TinyTensors hf = TinyQwen::trunk();
  const auto expected = all_values(*open_model_source(write_qwen(dir / "hf", hf)), hf);
  const auto same = [&](const fs::path& path, const char* what, const SourceOptions& options = {}) {
    const auto source = open_model_source(path, options);
    EXPECT_EQ(all_values(*source, hf), expected) << what;
    return source->facts()->layout;
  };
  EXPECT_EQ(same(write_qwen(dir / "mlx", in_mlx_layout(hf), {{"format", "mlx"}}), "mlx"), TrunkLayout::mlx);
  same(write_qwen(dir / "mlx_wrapped", renamed(in_mlx_layout(hf), "model.", "language_model.model.")), "mlx wrapped");
  TinyTensors wrapped = renamed(hf, "model.", "model.language_model.");
  wrapped["model.visual.blocks.0.weight"] = {{2, 2}, {1, 2, 3, 4}};
  nlohmann::json outer{{"model_type", "qwen3_5"}, {"text_config", TinyQwen::config()}};
  outer["architectures"] = {"Qwen3_5ForConditionalGeneration"};
  same(write_qwen(dir / "hf_wrapped", wrapped, {{"format", "pt"}}, outer), "hf wrapped");

  // Recorded: the raw norms in a file whose convolutions look like mlx.
  TinyTensors odd = in_mlx_layout(hf);
  for (auto& [name, tensor] : odd)
    if (tensor.shape.size() == 1) tensor.values = hf.at(name).values;
  same(write_qwen(dir / "recorded", odd, {{"outrider.layout", "mlx"}, {"outrider.norms", "zero_centred"}}), "recorded");
  const fs::path by_file = write_qwen(dir / "by_file", odd, {{"format", "mlx"}, {"outrider.norms", "one_centred"}});
  dir.write("by_file/outrider.json", R"({"outrider.norms": "zero_centred"})");
  same(by_file, "outrider.json wins over metadata");
}

TEST(QwenLayout, ARecordThatContradictsTheFilesIsTakenAndSaid) {
  TestDirectory dir;
  const TinyTensors mlx = in_mlx_layout(TinyQwen::trunk());
  const TinyMetadata converted{{"format", "mlx"},
                               {"outrider.layout", "mlx"},
                               {"outrider.norms", "one_centred"},
                               {"outrider.l2_eps", "hf"},
                               {"outrider.mtp_hidden_tap", "pre_norm"}};
  const fs::path path = write_qwen(dir / "m", mlx, converted);
  const auto told = [&](const char* record) {
    dir.write("m/outrider.json", record);
    return told_by([&] { open_model_source(path); });
  };
  EXPECT_EQ(told(R"({"outrider.layout": "mlx", "outrider.norms": "one_centred"})"), "");
  const std::string file = (path / "outrider.json").string(), metadata = path.string() + " (metadata)";
  EXPECT_EQ(told(R"({"outrider.norms": "zero_centred"})"),
            fmt::format("warning: {}: outrider.norms is zero_centred, {} says one_centred: the former is taken; remove "
                        "it if it was not meant\n",
                        file, metadata));
  EXPECT_THAT(told(R"({"outrider.l2_eps": "mlx"})"), HasSubstr("outrider.l2_eps is mlx, " + metadata + " says hf"));
  EXPECT_THAT(told(R"({"outrider.mtp_hidden_tap": "post_norm"})"),
              HasSubstr("outrider.mtp_hidden_tap is post_norm, " + metadata + " says pre_norm"));
  const std::string layout = told(R"({"outrider.layout": "hf"})");
  EXPECT_THAT(layout, HasSubstr("outrider.layout is hf, " + metadata + " says mlx"));
  EXPECT_THAT(layout, HasSubstr("outrider.layout is hf, the shape of conv1d says mlx"));
  EXPECT_THAT(layout, HasSubstr("outrider.layout is hf, metadata.format says mlx"));
}

TEST(QwenLayout, FusedInputProjectionsAreCutIntoTheirRows) {
  TestDirectory dir;
  const TinyTensors hf = TinyQwen::trunk();
  TinyTensors fused = hf;
  const std::int64_t e = TinyQwen::kE, group = TinyQwen::kHv / TinyQwen::kHk;
  TinyTensor qkvz{{TinyQwen::kChannels + TinyQwen::kHv * TinyQwen::kDv, e}, {}}, ba{{2 * TinyQwen::kHv, e}, {}};
  const auto append = [&](TinyTensor& to, const char* from, std::int64_t begin, std::int64_t rows) {
    const std::vector<float>& values = hf.at(kLayer + from).values;
    to.values.insert(to.values.end(), values.begin() + begin * e, values.begin() + (begin + rows) * e);
  };
  const std::int64_t keys = TinyQwen::kDk, values = group * TinyQwen::kDv;
  for (std::int64_t h = 0; h < TinyQwen::kHk; ++h) {
    append(qkvz, "in_proj_qkv.weight", h * keys, keys);
    append(qkvz, "in_proj_qkv.weight", TinyQwen::kHk * keys + h * keys, keys);
    append(qkvz, "in_proj_qkv.weight", 2 * TinyQwen::kHk * keys + h * values, values);
    append(qkvz, "in_proj_z.weight", h * values, values);
    append(ba, "in_proj_b.weight", h * group, group);
    append(ba, "in_proj_a.weight", h * group, group);
  }
  for (const char* part : {"qkv", "z", "b", "a"}) fused.erase(kLayer + "in_proj_" + part + ".weight");
  fused[kLayer + "in_proj_qkvz.weight"] = qkvz;
  fused[kLayer + "in_proj_ba.weight"] = ba;
  const fs::path path = write_qwen(dir / "fused", fused);
  EXPECT_EQ(all_values(*open_model_source(path), hf), all_values(*open_model_source(write_qwen(dir / "hf", hf)), hf));

  // Quantized, the codes and scales of whole rows move.
  ConvertOptions options;
  options.q_bits = 4;
  options.q_group_size = 32;
  convert(path, dir / "fused4", options);
  convert(dir / "hf", dir / "hf4", options);
  EXPECT_EQ(all_values(*open_model_source(dir / "fused4"), hf), all_values(*open_model_source(dir / "hf4"), hf));

  fused[kLayer + "in_proj_z.weight"] = hf.at(kLayer + "in_proj_z.weight");
  EXPECT_THAT(refusal(write_qwen(dir / "twice", fused)), HasSubstr("a second time"));
  fused.erase(kLayer + "in_proj_z.weight");
  fused[kLayer + "in_proj_ba.weight"] = {{4, e}, std::vector<float>(static_cast<std::size_t>(4 * e))};
  EXPECT_THAT(refusal(write_qwen(dir / "short", fused)), HasSubstr("is [4, 64], the config implies 8 rows"));
}

TEST(QwenLayout, ContradictionsAreRefusedUntilTheUserDecides) {
  TestDirectory dir;
  const TinyTensors hf = TinyQwen::trunk(), mlx = in_mlx_layout(hf);
  const SourceOptions say_hf{.layout = TrunkLayout::hf}, say_mlx{.layout = TrunkLayout::mlx};
  const fs::path foreign = write_qwen(dir / "foreign", hf, {{"format", "mlx"}});
  EXPECT_THAT(refusal(foreign), HasSubstr("metadata.format says mlx, the shape of conv1d says hf"));
  EXPECT_THAT(refusal(foreign), HasSubstr("--layout"));
  EXPECT_EQ(open_model_source(foreign, say_hf)->facts()->norms, NormCentre::zero);
  EXPECT_EQ(open_model_source(foreign, say_mlx)->facts()->norms, NormCentre::one);
  EXPECT_THAT(refusal(write_qwen(dir / "pt", mlx, {{"format", "pt"}})), HasSubstr("says hf"));

  EXPECT_THAT(refusal(write_qwen(dir / "hf", hf), say_mlx), HasSubstr("the layout mlx was asked for"));
  EXPECT_THAT(refusal(write_qwen(dir / "mlx", mlx, {{"format", "mlx"}}), say_hf), HasSubstr("the layout hf was asked"));
  EXPECT_THAT(refusal(write_qwen(dir / "ours", mlx, {{"outrider.layout", "mlx"}}), say_hf),
              HasSubstr("metadata records mlx"));

  TinyTensors mixed = hf;
  mixed["model.layers.1.linear_attn.conv1d.weight"] = mlx.at(kLayer + "conv1d.weight");
  EXPECT_THAT(refusal(write_qwen(dir / "mixed", mixed)), HasSubstr("a trunk has one layout"));
  TinyTensors narrow = hf;
  narrow[kLayer + "conv1d.weight"] = {{TinyQwen::kChannels / 2, 2, TinyQwen::kTaps},
                                      narrow.at(kLayer + "conv1d.weight").values};
  EXPECT_THAT(refusal(write_qwen(dir / "narrow", narrow)), HasSubstr("the config implies [96, 1, 4] or [96, 4, 1]"));
  TinyTensors none = hf;
  none.erase(kLayer + "conv1d.weight");
  EXPECT_THAT(refusal(write_qwen(dir / "none", none)), HasSubstr("has no conv1d.weight"));

  const fs::path llama = dir / "llama";
  write_qwen(llama, hf, {}, {{"model_type", "llama"}});
  EXPECT_THAT(refusal(llama, say_hf), HasSubstr("has one layout only"));
}

TEST(QwenLayout, OutriderJsonIsReadStrictly) {
  TestDirectory dir;
  const fs::path path = write_qwen(dir / "m", TinyQwen::trunk());
  dir.write("m/outrider.json", R"({"norms": "one_centred"})");
  EXPECT_THAT(refusal(path), HasSubstr("the key 'norms' is not known (accepted: outrider.layout"));
  dir.write("m/outrider.json", R"({"outrider.norms": "centred"})");
  EXPECT_THAT(refusal(path), HasSubstr("outrider.norms is 'centred' (accepted: zero_centred, one_centred)"));
  dir.write("m/outrider.json", R"({"outrider.norms": 1})");
  EXPECT_THAT(refusal(path), HasSubstr("outrider.norms is not a string"));
  dir.write("m/outrider.json", R"({"outrider.l2_eps": "mlx"})");
  EXPECT_EQ(open_model_source(path)->facts()->l2_eps, L2Epsilon::mlx);
}

TEST(QwenLayout, ExpertsAndForeignDimsAreRefused) {
  TestDirectory dir;
  TinyTensors experts = TinyQwen::trunk();
  experts["model.layers.0.mlp.experts.gate_up_proj"] = {{2, 4, 4}, std::vector<float>(32)};
  EXPECT_THAT(refusal(write_qwen(dir / "moe", experts)), HasSubstr("mixture of experts"));
  for (const auto& [key, value] : {std::pair("linear_num_value_heads", 3), std::pair("linear_conv_kernel_dim", 1),
                                   std::pair("linear_conv_kernel_dim", 9), std::pair("linear_key_head_dim", 257)}) {
    nlohmann::json config = TinyQwen::config();
    config[key] = value;
    EXPECT_THAT(refusal(write_qwen(dir / "dims", TinyQwen::trunk(), {}, config)), HasSubstr(key));
  }
}

TEST(QwenLayout, ALogStoredAsBf16IsReadAsThatF32Value) {
  TestDirectory dir;
  const auto source = open_model_source(write_qwen(dir / "m", TinyQwen::trunk(), {}, TinyQwen::config(), Dtype::BF16));
  const std::vector<float> read = vector_of(*source, kLayer + "A_log", TinyQwen::kHv);
  const TinyTensors tensors = TinyQwen::trunk();
  for (std::size_t i = 0; i < read.size(); ++i) {
    std::byte bytes[2];
    store_float(bytes, FloatType::bf16, tensors.at(kLayer + "A_log").values[i]);
    EXPECT_EQ(read[i], load_float(bytes, FloatType::bf16));
  }
}

TEST(QwenConvert, WritesTheMlxLayoutWithoutLosingABit) {
  TestDirectory dir;
  const TinyTensors hf = TinyQwen::whole();
  for (const Dtype dtype : {Dtype::F32, Dtype::BF16}) {
    const fs::path path = write_qwen(dir / "m", hf, {{"format", "pt"}}, TinyQwen::config(), dtype);
    const fs::path target = dir / (dtype == Dtype::F32 ? "f32" : "bf16");
    const ConvertResult result = convert(path, target, {});
    EXPECT_EQ(result.tensors, hf.size());
    const auto before = open_model_source(path), after = open_model_source(target);
    EXPECT_EQ(all_values(*before, hf), all_values(*after, hf));
    EXPECT_EQ(after->facts()->layout, TrunkLayout::mlx);
    EXPECT_EQ(after->facts()->layout_origin, "metadata");
    EXPECT_EQ(after->facts()->norms, NormCentre::one);
    EXPECT_EQ(after->facts()->mtp.state, HeadState::ready);
    const SafetensorsFile file(target / "model.safetensors");
    const auto& metadata = file.header().metadata;
    EXPECT_EQ(metadata.at("format"), "mlx");
    EXPECT_EQ(metadata.at("outrider.layout"), "mlx");
    EXPECT_EQ(metadata.at("outrider.norms"), "one_centred");
    EXPECT_EQ(metadata.at("outrider.mtp_norms"), "one_centred");
    EXPECT_EQ(metadata.at("outrider.mtp_hidden_tap"), "post_norm");
    EXPECT_EQ(metadata.at("outrider.l2_eps"), "hf");
    EXPECT_EQ(metadata.at("outrider.source_sha256").size(), 64U);
    const std::vector<std::int64_t> taps{TinyQwen::kChannels, TinyQwen::kTaps, 1};
    ASSERT_NE(file.find("language_model." + kLayer + "conv1d.weight"), nullptr);
    EXPECT_EQ(file.find("language_model." + kLayer + "conv1d.weight")->shape, taps);
    EXPECT_NE(file.find("mtp.fc.weight"), nullptr);
  }
}

TEST(QwenConvert, QuantizesMatricesOnlyAndNamesThemAsTheFileDoes) {
  TestDirectory dir;
  const fs::path path = write_qwen(dir / "m", TinyQwen::whole());
  ConvertOptions options;
  options.q_bits = 4;
  options.q_group_size = 32;
  options.overrides = {"model.embed_tokens=8/64", "mtp.fc=16"};
  convert(path, dir / "q", options);
  const auto source = open_model_source(dir / "q");
  const auto info = [&](const char* name) { return source->module(name, -1, -1); };
  EXPECT_EQ(info("model.embed_tokens").bits, 8);
  EXPECT_EQ(info("model.layers.0.linear_attn.in_proj_a").bits, 4);
  EXPECT_EQ(info("mtp.layers.0.mlp.up_proj").bits, 4);
  EXPECT_EQ(info("mtp.fc").kind, PackedKind::dense);
  EXPECT_TRUE(source->config()["quantization"].contains("language_model.model.embed_tokens"));
  EXPECT_FALSE(source->has(kLayer + "conv1d.scales"));
  // Quantizing what is quantized already changes nothing.
  convert(dir / "q", dir / "again", {});
  const TinyTensors hf = TinyQwen::whole();
  EXPECT_EQ(all_values(*open_model_source(dir / "again"), hf), all_values(*open_model_source(dir / "q"), hf));
}

TEST(QwenConvert, PutsTheHeadIntoASideCarThatReadsAlike) {
  TestDirectory dir;
  const TinyTensors hf = TinyQwen::whole();
  nlohmann::json config = TinyQwen::config();
  config["mtp_hidden_tap"] = "pre_norm";
  config["mtplx_mtp_quantization"] = {{"bits", 8}, {"group_size", 64}};
  config["mlx_lm_extra_tensors"] = {{"mtp_file", "gone.safetensors"}};
  const fs::path path = write_qwen(dir / "m", hf, {}, config);
  ConvertOptions options;
  options.q_bits = 4;
  options.q_group_size = 32;
  convert(path, dir / "whole", options);
  options.mtp_side_car = dir / "head";
  convert(path, dir / "trunk", options);
  SourceOptions beside{.mtp = MtpUse::on, .mtp_path = dir / "head"};
  const auto apart = open_model_source(dir / "trunk", beside), whole = open_model_source(dir / "whole");
  EXPECT_EQ(all_values(*apart, hf), all_values(*whole, hf));
  EXPECT_EQ(apart->facts()->mtp.tap, HiddenTap::pre_norm);
  EXPECT_EQ(open_model_source(dir / "trunk")->facts()->mtp.state, HeadState::absent);
  const SafetensorsFile file(dir / "head" / "model.safetensors");
  EXPECT_NE(file.find("layers.0.mlp.up_proj.scales"), nullptr);
  EXPECT_THAT(message_of([&] { convert(dir / "trunk", dir / "again", options); }), HasSubstr("head"));
}

TEST(QwenPanels, APanelFileGivesTheSameBytesAndKnowsHowTheNormsWereRead) {
  TestDirectory dir;
  const TinyTensors hf = TinyQwen::whole();
  const fs::path path = write_qwen(dir / "m", hf);
  // A panel file is written from the weights of the model that was loaded: they must live so long.
  std::vector<PackedWeight> matrices;
  std::vector<AlignedBuffer> floats;
  const auto packed = [&](ModelSource& source) {
    std::map<std::string, std::string> out;
    const auto text = [](const std::byte* data, std::size_t bytes) {
      return std::string(reinterpret_cast<const char*>(data), bytes);
    };
    for (const auto& [name, tensor] : hf) {
      if (tensor.shape.size() == 2) {
        matrices.push_back(source.load_matrix(name.substr(0, name.size() - 7), -1, -1, Precision::packed));
        out[name] = text(matrices.back().view.data, matrices.back().view.bytes());
        continue;
      }
      floats.push_back(tensor.shape.size() == 1 ? source.load_vector(name, tensor.shape[0])
                                                : source.load_table(name, tensor.shape[0], TinyQwen::kTaps));
      out[name] = text(floats.back().data(), floats.back().size());
    }
    return out;
  };
  const auto expected = packed(*open_model_source(path));
  {
    const auto first = open_panel_source(path, PanelUse::always);
    EXPECT_TRUE(packed(*first) == expected);
    auto job = first->job();
    ASSERT_TRUE(job.has_value());
    PanelWriting writing(std::move(*job), {});
  }
  const auto second = open_panel_source(path, PanelUse::always);
  ASSERT_NE(second->file(), nullptr);
  EXPECT_TRUE(packed(*second) == expected);
  EXPECT_TRUE(second->all_from_file());
  EXPECT_THAT(second->unused_tensors(), testing::IsEmpty());
  EXPECT_EQ(second->mtp_identity(), open_model_source(path)->mtp_identity());
  // outrider.json is no weight file, but it changes what the norms mean.
  dir.write("m/outrider.json", R"({"outrider.norms": "one_centred"})");
  EXPECT_EQ(open_panel_source(path, PanelUse::always)->file(), nullptr);
}

}  // namespace
}  // namespace outrider
