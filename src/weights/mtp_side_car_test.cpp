// Where an MTP head may lie and what its norms mean (models.md 4.3, 4.6).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/stored_model.h"
#include "weights/test_qwen3_5.h"

namespace outrider {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
namespace fs = std::filesystem;

const TinyTensors kHead = TinyQwen::head();

TinyTensors one_centred(const TinyTensors& head) { return in_mlx_layout(head); }
TinyTensors without_prefix(const TinyTensors& head) { return renamed(head, "mtp.", ""); }

TinyTensors joined(TinyTensors a, TinyTensors b) {
  a.merge(b);
  return a;
}

// The head as a graph reads it: its norms must be 1+w whatever was stored.
void expect_head(const fs::path& path, const SourceOptions& options = {}) {
  const auto source = open_model_source(path, options);
  ASSERT_EQ(source->facts()->mtp.state, HeadState::ready) << source->facts()->mtp.detail;
  const TinyTensors expected = one_centred(kHead);
  for (const auto& [name, tensor] : expected) {
    if (tensor.shape.size() == 1) {
      const AlignedBuffer read = source->load_vector(name, tensor.shape[0]);
      EXPECT_EQ(std::vector<float>(read.as<float>().begin(), read.as<float>().end()), tensor.values) << name;
    } else {
      const PackedWeight read =
          source->load_matrix(name.substr(0, name.size() - 7), tensor.shape[0], tensor.shape[1], Precision::f32);
      EXPECT_EQ(unpack(read.view).values, tensor.values) << name;
    }
  }
}

MtpFacts facts_of(const fs::path& path, const SourceOptions& options = {}) {
  return open_model_source(path, options)->facts()->mtp;
}
std::string refusal(const fs::path& path, const SourceOptions& options = {}) {
  return message_of([&] { open_model_source(path, options); });
}
SourceOptions on() {
  SourceOptions options;
  options.mtp = MtpUse::on;
  return options;
}

struct Trunks {
  TestDirectory dir;
  fs::path hf = write_qwen(dir / "hf", TinyQwen::trunk(), {{"format", "pt"}});
  fs::path mlx = write_qwen(dir / "mlx", in_mlx_layout(TinyQwen::trunk()), {{"format", "mlx"}});
};

TEST(MtpHead, InAnHfTrunkIsZeroCentredUnderEveryPrefix) {
  TestDirectory dir;
  for (const char* prefix : {"mtp.", "model.mtp.", "language_model.mtp."})
    expect_head(write_qwen(dir / "m", joined(TinyQwen::trunk(), renamed(kHead, "mtp.", prefix)), {{"format", "pt"}}));
}

TEST(MtpHead, InAnMlxTrunkNeedsAWordAboutItsNorms) {
  TestDirectory dir;
  const TinyTensors tensors = joined(in_mlx_layout(TinyQwen::trunk()), one_centred(kHead));
  const fs::path path = write_qwen(dir / "m", tensors, {{"format", "mlx"}});
  EXPECT_EQ(facts_of(path).state, HeadState::ambiguous);
  EXPECT_FALSE(open_model_source(path)->has("mtp.fc.weight"));
  EXPECT_THAT(refusal(path, on()), HasSubstr("outrider bench mtp --readings"));
  // MTPLX shifts and keeps the prefix.
  nlohmann::json config = TinyQwen::config();
  config["mtplx_version"] = "1";
  expect_head(write_qwen(dir / "mtplx", tensors, {{"format", "mtplx"}}, config));
  // Recorded in outrider.json, and tried by the measurement.
  dir.write("m/outrider.json", R"({"outrider.mtp_norms": "one_centred"})");
  expect_head(path);
  SourceOptions reading;
  reading.mtp_norms = NormCentre::zero;
  EXPECT_EQ(facts_of(path, reading).norms, NormCentre::zero);
}

TEST(MtpHead, AFolderOfItsOwnSaysByItsNamesWhatItsNormsMean) {
  Trunks t;
  const nlohmann::json config{{"model_type", "qwen3_5_mtp"}, {"text_config", TinyQwen::config()}, {"block_size", 3}};
  const auto folder = [&](const char* name, const TinyTensors& tensors, const nlohmann::json& its_config) {
    return write_qwen(t.dir / name, tensors, {{"format", "mlx"}}, its_config);
  };
  SourceOptions options = on();
  for (const fs::path& trunk : {t.hf, t.mlx}) {
    options.mtp_path = folder("plain", without_prefix(one_centred(kHead)), config);
    expect_head(trunk, options);
    options.mtp_path = folder("prefixed", kHead, config);
    expect_head(trunk, options);
  }
  options.mtp_path = folder("both", joined(kHead, {{"fc.weight", kHead.at("mtp.fc.weight")}}), config);
  EXPECT_THAT(refusal(t.hf, options), HasSubstr("mean"));
  TinyTensors two_kinds = kHead;
  two_kinds["norm.weight"] = two_kinds.at("mtp.norm.weight");
  two_kinds.erase("mtp.norm.weight");
  options.mtp_path = folder("two_kinds", two_kinds, config);
  EXPECT_THAT(refusal(t.hf, options), HasSubstr("with and without the prefix"));
  nlohmann::json wide = config;
  wide["text_config"]["hidden_size"] = 128;
  options.mtp_path = folder("wide", kHead, wide);
  EXPECT_THAT(refusal(t.hf, options), HasSubstr("hidden_size is 128, the model's is 64"));
  options.mtp_path = t.dir / "nowhere";
  EXPECT_THAT(refusal(t.hf, options), HasSubstr("does not exist"));
}

TEST(MtpHead, FilesBesideATrunkAreFoundInOrderAndMustSayWhatTheirNormsMean) {
  for (const char* place :
       {"optiq/mtp.safetensors", "mtp.safetensors", "mtp/weights.safetensors", "model-mtp.safetensors"}) {
    Trunks t;
    write_tensors(t.hf / place, kHead);
    EXPECT_EQ(facts_of(t.hf).state, HeadState::ambiguous) << place;
    EXPECT_THAT(facts_of(t.hf).place, HasSubstr(place));
    EXPECT_THAT(refusal(t.hf, on()), HasSubstr("nothing says whether its norms")) << place;
    write_tensors(t.hf / place, kHead, {{"outrider.mtp_norms", "zero_centred"}});
    expect_head(t.hf, on());
    write_tensors(t.mlx / place, one_centred(kHead), {{"outrider.mtp_norms", "one_centred"}});
    expect_head(t.mlx, on());
  }
  Trunks t;
  write_tensors(t.hf / "mtp.safetensors", kHead, {{"outrider.mtp_norms", "zero_centred"}});
  write_tensors(t.hf / "optiq/mtp.safetensors", one_centred(kHead), {{"outrider.mtp_norms", "one_centred"}});
  EXPECT_THAT(facts_of(t.hf).place, HasSubstr("optiq"));
  nlohmann::json config = TinyQwen::config();
  config["mlx_lm_extra_tensors"] = {{"mtp_file", "mtp.safetensors"}};
  write_qwen(t.hf, TinyQwen::trunk(), {}, config);
  EXPECT_THAT(facts_of(t.hf).place, testing::Not(HasSubstr("optiq")));
  for (const char* bad : {"../mtp.safetensors", "/mtp.safetensors", ""}) {
    config["mlx_lm_extra_tensors"]["mtp_file"] = bad;
    write_qwen(t.hf, TinyQwen::trunk(), {}, config);
    EXPECT_THAT(refusal(t.hf), HasSubstr("without ..")) << bad;
  }
  config["mlx_lm_extra_tensors"]["mtp_file"] = "gone.safetensors";
  write_qwen(t.hf, TinyQwen::trunk(), {}, config);
  EXPECT_THAT(refusal(t.hf), HasSubstr("'gone.safetensors', which does not exist"));
}

TEST(MtpHead, OfTheTrunkWinsOverSideCars) {
  TestDirectory dir;
  const fs::path path = write_qwen(dir / "m", TinyQwen::whole());
  write_tensors(path / "mtp.safetensors", one_centred(kHead), {{"outrider.mtp_norms", "one_centred"}});
  EXPECT_EQ(facts_of(path).place, path.string());
}

TEST(MtpHead, FailsClosedWhenHalfOfItIsThere) {
  TestDirectory dir;
  for (const auto& [name, tensor] : kHead) {
    TinyTensors tensors = TinyQwen::whole();
    tensors.erase(name);
    const std::string message = refusal(write_qwen(dir / "m", tensors));
    EXPECT_THAT(message, HasSubstr("1 of the 15 tensors of the MTP head are missing"));
    EXPECT_THAT(message, HasSubstr(name.substr(0, name.size() - 7)));
  }
  TinyTensors tensors = TinyQwen::whole();
  tensors["mtp.layers.1.input_layernorm.weight"] = tensors.at("mtp.norm.weight");
  EXPECT_THAT(refusal(write_qwen(dir / "m", tensors)), HasSubstr("second MTP layer"));
  SourceOptions off;
  off.mtp = MtpUse::off;
  EXPECT_EQ(facts_of(dir / "m", off).state, HeadState::off);
  EXPECT_FALSE(open_model_source(dir / "m", off)->has("mtp.fc.weight"));
}

TEST(MtpHead, AFaultOfASideCarNamesItsFile) {
  Trunks t;
  const fs::path file = t.hf / "mtp.safetensors", config = t.hf / "config.json";
  const auto refused = [&](const TinyTensors& tensors, const TinyMetadata& metadata = {}) {
    write_tensors(file, tensors, metadata);
    return refusal(t.hf);
  };
  TinyTensors tensors = kHead;
  tensors.erase("mtp.fc.weight");
  EXPECT_THAT(refused(tensors), StartsWith(file.string() + ": 1 of the 15 tensors"));
  tensors = kHead;
  tensors["mtp.layers.1.input_layernorm.weight"] = tensors.at("mtp.norm.weight");
  EXPECT_THAT(refused(tensors), StartsWith(file.string() + ": tensor 'mtp.layers.1.input_layernorm.weight'"));
  tensors = kHead;
  tensors["mtp.more.weight"] = tensors.at("mtp.norm.weight");
  EXPECT_THAT(refused(tensors), StartsWith(file.string() + ": 1 tensors are of no part of an MTP head (mtp.more.weig"));
  tensors = kHead;
  tensors["fc.weight"] = tensors.at("mtp.fc.weight");
  EXPECT_THAT(refused(tensors), StartsWith(file.string() + ": tensor "));
  EXPECT_THAT(refused(kHead, {{"outrider.mtp_norms", "middle"}}),
              StartsWith(file.string() + ": outrider.mtp_norms is 'middle'"));
  EXPECT_THAT(refused(kHead, {{"outrider.mtp_hidden_tap", "middle"}}),
              StartsWith(file.string() + ": outrider.mtp_hidden_tap is 'middle'"));
  // What only a load sees.
  write_tensors(file, kHead, {{"outrider.mtp_norms", "zero_centred"}});
  const auto source = open_model_source(t.hf);
  EXPECT_THAT(message_of([&] { source->module("mtp.fc", 64, 64); }),
              StartsWith(file.string() + ": tensor 'mtp.fc.weight': is [64, 128]"));
  EXPECT_THAT(message_of([&] { source->load_vector("mtp.norm.weight", 7); }),
              StartsWith(file.string() + ": tensor 'mtp.norm.weight': is [64]"));
  EXPECT_THAT(message_of([&] { source->load_vector("mtp.none", 7); }), StartsWith(file.string() + ": tensor "));
  EXPECT_THAT(message_of([&] { source->load_vector("model.none", 7); }), StartsWith(t.hf.string() + ": tensor "));
  // A folder's config, and the trunk's.
  nlohmann::json side{{"model_type", "qwen3_5_mtp"}, {"mtp_hidden_tap", "middle"}};
  SourceOptions options = on();
  options.mtp_path = write_qwen(t.dir / "folder", kHead, {}, side);
  EXPECT_THAT(refusal(t.hf, options), StartsWith((t.dir / "folder" / "config.json").string() + ": mtp_hidden_tap"));
  nlohmann::json trunk = TinyQwen::config();
  trunk["mtp_hidden_tap"] = "middle";
  write_qwen(t.hf, TinyQwen::trunk(), {}, trunk);
  EXPECT_THAT(refusal(t.hf), StartsWith(config.string() + ": mtp_hidden_tap"));
}

TEST(MtpHead, ARecordThatContradictsASideCarIsTakenAndSaid) {
  Trunks t;
  const fs::path file = t.hf / "mtp.safetensors";
  write_tensors(file, kHead, {{"outrider.mtp_norms", "zero_centred"}, {"outrider.mtp_hidden_tap", "pre_norm"}});
  EXPECT_EQ(told_by([&] { facts_of(t.hf); }), "");
  t.dir.write("hf/outrider.json", R"({"outrider.mtp_norms": "one_centred", "outrider.mtp_hidden_tap": "post_norm"})");
  MtpFacts facts;
  const std::string told = told_by([&] { facts = facts_of(t.hf); });
  EXPECT_THAT(told, HasSubstr("outrider.mtp_norms is one_centred, " + file.string() + " says zero_centred"));
  EXPECT_THAT(told, HasSubstr("outrider.mtp_hidden_tap is post_norm, " + file.string() + " says pre_norm"));
  EXPECT_EQ(facts.norms, NormCentre::one);
  EXPECT_EQ(facts.tap, HiddenTap::post_norm);
}

TEST(MtpHead, AbsentOneIsSaidAndRefusedOnlyWhenAskedFor) {
  Trunks t;
  EXPECT_EQ(facts_of(t.hf).state, HeadState::absent);
  EXPECT_THAT(refusal(t.hf, on()), HasSubstr("looked for mtp.* among the trunk's tensors, optiq/mtp.safetensors"));
  const fs::path llama = write_qwen(t.dir / "llama", {}, {}, {{"model_type", "llama"}});
  EXPECT_THAT(refusal(llama, on()), HasSubstr("without an MTP head"));
}

TEST(MtpHead, TheTapIsSaidByTheUserTheRecordOrTheConfigAndElseIsPostNorm) {
  TestDirectory dir;
  nlohmann::json config = TinyQwen::config();
  const auto tap = [&](const TinyMetadata& metadata, const SourceOptions& options = {}) {
    const MtpFacts facts = facts_of(write_qwen(dir / "m", TinyQwen::whole(), metadata, config), options);
    return fmt::format("{} by {}", name_of(facts.tap), facts.tap_origin);
  };
  EXPECT_EQ(tap({}), "post_norm by default");
  config["mtp_hidden_tap"] = "pre_norm";
  EXPECT_EQ(tap({}), "pre_norm by config.json");
  EXPECT_EQ(tap({{"outrider.mtp_hidden_tap", "post_norm"}}), "post_norm by metadata");
  dir.write("m/outrider.json", R"({"outrider.mtp_hidden_tap": "pre_norm"})");
  EXPECT_EQ(tap({{"outrider.mtp_hidden_tap", "post_norm"}}), "pre_norm by outrider.json");
  SourceOptions options;
  options.mtp_hidden = HiddenTap::post_norm;
  EXPECT_EQ(tap({}, options), "post_norm by --mtp-hidden");
  config["mtp_hidden_tap"] = "middle";
  fs::remove(dir / "m" / "outrider.json");
  EXPECT_THAT(message_of([&] { tap({}); }), HasSubstr("mtp_hidden_tap is 'middle' (accepted: pre_norm, post_norm)"));
}

TEST(MtpHead, QuantizationComesFromItsOwnConfigElseFromTheTrunks) {
  Trunks t;
  // fc as 8-bit codes, groups of 64; every code 1, scale 0.5, bias 0: every weight 0.5.
  const auto write_head = [&](const fs::path& file) {
    TinyTensors head = without_prefix(one_centred(kHead));
    head.erase("fc.weight");
    std::vector<StoredTensor> list;
    for (const auto& [name, tensor] : head) list.push_back({name, Dtype::F32, tensor.shape, 0, 0});
    list.push_back({"fc.weight", Dtype::U32, {64, 32}, 0, 0});
    for (const char* name : {"fc.scales", "fc.biases"}) list.push_back({name, Dtype::F32, {64, 2}, 0, 0});
    fs::create_directories(file.parent_path());
    SafetensorsWriter writer(file, list, {{"outrider.mtp_norms", "one_centred"}});
    for (const auto& [name, tensor] : head) writer.write(name, 0, std::as_bytes(std::span(tensor.values)));
    const std::vector<std::uint32_t> codes(64 * 32, 0x01010101U);
    const std::vector<float> scales(128, 0.5f), biases(128, 0.0f);
    writer.write("fc.weight", 0, std::as_bytes(std::span(codes)));
    writer.write("fc.scales", 0, std::as_bytes(std::span(scales)));
    writer.write("fc.biases", 0, std::as_bytes(std::span(biases)));
    writer.commit();
  };
  const auto fc = [&] {
    const PackedWeight read = open_model_source(t.mlx)->load_matrix("mtp.fc", 64, 128, Precision::f32);
    return unpack(read.view).values;
  };
  const std::vector<float> expected(64 * 128, 0.5f);
  write_head(t.mlx / "mtp" / "weights.safetensors");
  EXPECT_THAT(refusal(t.mlx), testing::IsEmpty());
  EXPECT_THAT(message_of(fc), HasSubstr("no quantization parameters"));
  t.dir.write("mlx/mtp/config.json", R"({"quantization": {"bits": 4, "group_size": 64, "fc": {"bits": 8}}})");
  EXPECT_EQ(fc(), expected);
  fs::remove(t.mlx / "mtp" / "config.json");
  nlohmann::json config = TinyQwen::config();
  config["quantization"] = {{"bits", 4}, {"group_size", 64}};
  config["mtplx_mtp_quantization"] = {{"bits", 8}, {"group_size", 64}};
  write_qwen(t.mlx, in_mlx_layout(TinyQwen::trunk()), {}, config);
  EXPECT_EQ(fc(), expected);
  config.erase("mtplx_mtp_quantization");
  config["quantization"]["mtp.fc"] = {{"bits", 8}};
  write_qwen(t.mlx, in_mlx_layout(TinyQwen::trunk()), {}, config);
  EXPECT_EQ(fc(), expected);
}

TEST(MtpHead, IdentityFollowsTensorsReadingAndTrunk) {
  TestDirectory dir;
  const fs::path path = write_qwen(dir / "m", TinyQwen::whole());
  const Sha256Digest base = open_model_source(path)->mtp_identity();
  EXPECT_EQ(open_model_source(path)->mtp_identity(), base);
  SourceOptions reading;
  reading.mtp_norms = NormCentre::one;
  EXPECT_NE(open_model_source(path, reading)->mtp_identity(), base);
  TinyTensors changed = TinyQwen::whole();
  changed.at("mtp.fc.weight").values[5] += 1.0f;
  EXPECT_NE(open_model_source(write_qwen(dir / "m2", changed))->mtp_identity(), base);
  // The same head on another trunk.
  TinyTensors other = TinyQwen::whole();
  other.at("model.norm.weight").values[0] += 1.0f;
  EXPECT_NE(open_model_source(write_qwen(dir / "m3", other))->mtp_identity(), base);
}

}  // namespace
}  // namespace outrider
