#include "layers/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

RopeConfig read(const json& config, std::int64_t rotated) {
  return read_rope(ConfigReader(config, "config.json"), rotated);
}

RowFrequencies frequencies(const json& config, std::int64_t rotated, std::int64_t planned = 0) {
  static std::vector<Rope> kept;  // the result points into its Rope
  static float computed[256];
  kept.reserve(64);
  kept.emplace_back(read(config, rotated));
  return kept.back().frequencies(planned, computed);
}

std::string refusal(const json& config, std::int64_t rotated) {
  try {
    read(config, rotated);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return "accepted";
}

// Relative distance to an anchor of models.md 2.2.
void expect_anchor(float value, double anchor) { EXPECT_NEAR(static_cast<double>(value) / anchor, 1, 2e-7) << anchor; }

const json kLlama3 = {{"max_position_embeddings", 131072},
                      {"rope_theta", 500000.0},
                      {"rope_scaling",
                       {{"rope_type", "llama3"},
                        {"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}}}};

TEST(Rope, DefaultFrequenciesArePowersOfTheta) {
  const RowFrequencies f = frequencies({{"max_position_embeddings", 100}, {"rope_theta", 10000.0}}, 8);
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(f.inv_freq[i], static_cast<float>(std::pow(10.0, -i)));
  EXPECT_EQ(f.factor, 1.0F);
}

TEST(Rope, Llama3Anchors) {
  const RowFrequencies f = frequencies(kLlama3, 64);
  expect_anchor(f.inv_freq[13], 4.8394213e-3);
  expect_anchor(f.inv_freq[15], 1.2905479e-3);
  expect_anchor(f.inv_freq[17], 9.7082878e-5);
  expect_anchor(f.inv_freq[31], 9.4183067e-8);
  const auto slowed = [&](int i) { return std::pow(5e5, -i / 32.0) / static_cast<double>(f.inv_freq[i]); };
  EXPECT_NEAR(slowed(15), 1.6513, 5e-5);
  EXPECT_NEAR(slowed(16), 3.2923, 5e-5);
  EXPECT_NEAR(slowed(17), 9.6667, 5e-5);
  EXPECT_NEAR(slowed(18), 32, 1e-4);
  EXPECT_EQ(f.factor, 1.0F);
}

TEST(Rope, YarnAnchors) {
  const json config = {
      {"max_position_embeddings", 131072},
      {"rope_theta", 1e6},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}};
  const RowFrequencies f = frequencies(config, 128);
  expect_anchor(f.inv_freq[32], 6.0294118e-4);
  expect_anchor(f.factor, 1.1386294);
  // low 23, high 40: before it the base frequency, behind it a quarter.
  EXPECT_FLOAT_EQ(f.inv_freq[23], static_cast<float>(std::pow(1e6, -23 / 64.0)));
  EXPECT_FLOAT_EQ(f.inv_freq[40], static_cast<float>(std::pow(1e6, -40 / 64.0) / 4));
  EXPECT_LT(f.inv_freq[24], static_cast<float>(std::pow(1e6, -24 / 64.0)));
  EXPECT_GT(f.inv_freq[39], static_cast<float>(std::pow(1e6, -39 / 64.0) / 4));
}

TEST(Rope, YarnFactorsAndRounding) {
  json config = {
      {"max_position_embeddings", 4096},
      {"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 10000.0}, {"factor", 8.0}, {"mscale", 0.7}}}};
  json& scaling = config["rope_parameters"];
  EXPECT_FLOAT_EQ(frequencies(config, 64).factor,
                  static_cast<float>(0.1 * std::log(8.0) + 1));  // mscale alone: not used
  scaling["mscale_all_dim"] = 0.4;
  EXPECT_FLOAT_EQ(frequencies(config, 64).factor,
                  static_cast<float>((0.07 * std::log(8.0) + 1) / (0.04 * std::log(8.0) + 1)));
  scaling["attention_factor"] = 0.9;
  EXPECT_EQ(frequencies(config, 64).factor, 0.9F);
  const float rounded = frequencies(config, 64).inv_freq[15];
  scaling["truncate"] = false;
  EXPECT_NE(frequencies(config, 64).inv_freq[15], rounded);
}

TEST(Rope, DynamicStretchesThetaForRowsPlannedBeyondTheTrainedLength) {
  const json config = {
      {"max_position_embeddings", 4096}, {"rope_theta", 1e4}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}};
  const double theta = 30527.737;  // S = 8192
  const RowFrequencies stretched = frequencies(config, 128, 8192);
  for (const int i : {1, 20, 63})
    EXPECT_NEAR(static_cast<double>(stretched.inv_freq[i]) / std::pow(theta, -i / 64.0), 1, 3e-7) << i;
  const RowFrequencies plain = frequencies(config, 128, 4096);
  EXPECT_FLOAT_EQ(plain.inv_freq[20], static_cast<float>(std::pow(1e4, -20 / 64.0)));
  EXPECT_EQ(rope_context_tokens(read(config, 128)), 8192);
}

TEST(Rope, LongropeChoosesByThePlannedLength) {
  json config = {
      {"max_position_embeddings", 131072},
      {"original_max_position_embeddings", 4096},
      {"rope_theta", 1e4},
      {"rope_scaling",
       {{"type", "longrope"}, {"short_factor", {1.0, 2.0, 3.0, 4.0}}, {"long_factor", {10.0, 20.0, 30.0, 40.0}}}}};
  expect_anchor(frequencies(config, 8, 4096).factor, 1.1902381);
  EXPECT_FLOAT_EQ(frequencies(config, 8, 4096).inv_freq[1], 0.1F / 2);
  EXPECT_FLOAT_EQ(frequencies(config, 8, 4097).inv_freq[1], 0.1F / 20);
  expect_anchor(frequencies(config, 8, 4097).factor, 1.1902381);
  config["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(frequencies(config, 8, 1).factor, 1.5F);
  // Without P0 the factor is given and P0 is max_position_embeddings.
  config = {{"max_position_embeddings", 1024},
            {"rope_scaling",
             {{"rope_type", "longrope"}, {"factor", 4.0}, {"short_factor", {1.0, 1.0}}, {"long_factor", {2.0, 2.0}}}}};
  EXPECT_FLOAT_EQ(frequencies(config, 4, 1025).inv_freq[0], 0.5F);
  EXPECT_FLOAT_EQ(frequencies(config, 4, 1).factor,
                  static_cast<float>(std::sqrt(1 + std::log(4.0) / std::log(1024.0))));
  EXPECT_EQ(rope_context_tokens(read(config, 4)), 4096);
}

TEST(Rope, LinearAndDivisors) {
  const json linear = {{"max_position_embeddings", 2048}, {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}};
  EXPECT_FLOAT_EQ(frequencies(linear, 8).inv_freq[1], 0.1F / 4);
  EXPECT_EQ(rope_context_tokens(read(linear, 8)), 8192);
  const json divisors = {{"max_position_embeddings", 2048}, {"rope_freq_divisors", {1.0, 1.0, 8.0, 32.0}}};
  EXPECT_FLOAT_EQ(frequencies(divisors, 8).inv_freq[2], 0.01F / 8);
  EXPECT_FLOAT_EQ(frequencies(divisors, 8).inv_freq[3], 0.001F / 32);
}

TEST(Rope, BothSpellingsMeanTheSame) {
  json renewed = {{"max_position_embeddings", 131072}, {"rope_parameters", kLlama3["rope_scaling"]}};
  renewed["rope_parameters"]["rope_theta"] = 500000.0;
  const RowFrequencies old_spelling = frequencies(kLlama3, 64), new_spelling = frequencies(renewed, 64);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(old_spelling.inv_freq[i], new_spelling.inv_freq[i]) << i;
  const json wrapped = {{"text_config", kLlama3}};
  EXPECT_EQ(frequencies(wrapped, 64).inv_freq[17], old_spelling.inv_freq[17]);
}

TEST(Rope, InterleavedFlags) {
  EXPECT_EQ(read({{"max_position_embeddings", 10}}, 8).pairs, RopePairs::half_split);
  EXPECT_EQ(read({{"max_position_embeddings", 10}, {"rope_traditional", true}}, 8).pairs, RopePairs::interleaved);
  EXPECT_EQ(read({{"max_position_embeddings", 10}, {"rope_interleaved", true}}, 8).pairs, RopePairs::interleaved);
}

TEST(Rope, RefusesWhatItCannotCompute) {
  const auto scaled = [](const json& scaling) {
    return json{{"max_position_embeddings", 4096}, {"rope_scaling", scaling}};
  };
  EXPECT_THAT(refusal(scaled({{"type", "ntk"}}), 8),
              HasSubstr("rope_scaling.type is \"ntk\" (accepted: default, linear"));
  EXPECT_THAT(refusal(scaled({{"type", "linear"}}), 8), HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(refusal(scaled({{"type", "linear"}, {"factor", 0}}), 8), HasSubstr("rope_scaling.factor is 0"));
  EXPECT_THAT(
      refusal(scaled({{"type", "longrope"}, {"factor", 2}, {"short_factor", {1.0}}, {"long_factor", {1.0}}}), 8),
      HasSubstr("short_factor is [1.0] (accepted: 4 numbers > 0"));
  EXPECT_THAT(refusal(scaled({{"type", "dynamic"}, {"factor", 2}}), 2), HasSubstr("more than 2 rotated dims"));
  EXPECT_THAT(refusal(scaled({{"full_attention", {{"rope_type", "default"}}}}), 8), HasSubstr("one set of values"));
  EXPECT_THAT(refusal({{"max_position_embeddings", 10}, {"rope_theta", 1.0}}, 8), HasSubstr("rope_theta is 1.0"));
  json inverted = kLlama3;
  inverted["rope_scaling"]["high_freq_factor"] = 1.0;
  EXPECT_THAT(refusal(inverted, 64), HasSubstr("high_freq_factor is 1.0 (accepted: more than low_freq_factor)"));
  EXPECT_THAT(refusal({{"rope_theta", 1e4}}, 8), HasSubstr("max_position_embeddings is missing"));
}

TEST(Rope, RowsOfOneBatchMayDiffer) {
  const Rope rope(read({{"max_position_embeddings", 4}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}, 8));
  const std::unique_ptr<Device> device = make_cpu_device(1);
  Arena arena(1 << 16);
  std::byte* block = nullptr;
  const std::vector<std::int32_t> ids(4);
  const std::vector<BatchRow> rows = {{0, 2, 3, 8, {&block, 1}}, {2, 4, 3, 4, {&block, 1}}};
  const RopeAngles angles = rope.angles({*device, arena}, {ids, rows});
  EXPECT_EQ(angles.cos.row(0)[0], angles.cos.row(2)[0]);  // inv_0 = 1 whatever theta is
  EXPECT_NE(angles.cos.row(0)[2], angles.cos.row(2)[2]);
  EXPECT_EQ(angles.cos.row(1)[0], static_cast<float>(std::cos(4.0)));
}

}  // namespace
}  // namespace outrider
