#include "weights/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "weights/json_strict.h"
#include "weights/quantization_map.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ConfigReader, LooksInTextConfigThenInTheRootAndTakesNullAsAbsent) {
  const json config = json::parse(
      R"({"hidden_size": 1, "vocab_size": 7, "x": 3, "text_config": {"hidden_size": 64, "x": null, "name": "n"}})");
  const ConfigReader reader(config, "config.json");
  EXPECT_EQ(reader.dimension("hidden_size"), 64);
  EXPECT_EQ(reader.dimension("vocab_size"), 7);
  EXPECT_EQ(reader.integer("x", 0, 10), 3);
  EXPECT_EQ(reader.text("name"), "n");
  EXPECT_EQ(reader.dimension("absent", 5), 5);
  EXPECT_FALSE(reader.has("absent"));
}

TEST(ConfigReader, NamesKeyValueAndWhatIsAccepted) {
  const json config = json::parse(
      R"({"a": 0, "b": "x", "c": 1.5, "d": 16777216, "e": 1, "f": 18446744073709551615, "g": true, "s": {"factor": "two"}, "l": [1, "x"]})");
  const ConfigReader reader(config, "dir/config.json");
  const auto says = [&](const char* key) { return message_of([&] { reader.dimension(key); }); };
  EXPECT_EQ(
      says("a"),
      "dir/config.json: a is 0 (accepted: an integer 1..16777215) | take a model or a copy with an accepted value");
  EXPECT_THAT(says("b"), HasSubstr("b is \"x\" (accepted: an integer"));
  EXPECT_THAT(says("c"), HasSubstr("c is 1.5"));
  EXPECT_THAT(says("d"), HasSubstr("d is 16777216"));
  EXPECT_THAT(says("f"), HasSubstr("f is 18446744073709551615"));
  EXPECT_THAT(says("g"), HasSubstr("g is true"));
  EXPECT_THAT(says("z"), HasSubstr("z is missing (accepted: an integer"));
  EXPECT_THAT(message_of([&] { reader.flag("e", false); }), HasSubstr("e is 1 (accepted: true, false)"));
  EXPECT_THAT(message_of([&] { reader.object("s").number("factor", 1, 2); }),
              HasSubstr("s.factor is \"two\" (accepted: a number 1..2)"));
  EXPECT_THAT(message_of([&] { reader.object("a"); }), HasSubstr("a is 0 (accepted: an object)"));
  EXPECT_THAT(message_of([&] { reader.numbers("l"); }), HasSubstr("l is [1,\"x\"] (accepted: a list of numbers)"));
  EXPECT_THAT(message_of([&] { ConfigReader(json::array(), "f"); }), HasSubstr("is array, not a JSON object"));
}

TEST(StopIds, AreTheUnionOfGenerationConfigAndTokenizer) {
  const json config{{"eos_token_id", 5}, {"text_config", {{"eos_token_id", 6}}}};
  EXPECT_THAT(stop_ids(config, json{{"eos_token_id", {9, 7}}}, std::array{8, 7}, 10), ElementsAre(7, 8, 9));
  EXPECT_THAT(stop_ids(config, json{{"eos_token_id", nullptr}}, {}, 10), ElementsAre(5));
  EXPECT_THAT(stop_ids(json{{"text_config", {{"eos_token_id", 6}}}}, nullptr, std::array{6}, 10), ElementsAre(6));
  EXPECT_THAT(stop_ids(json::object(), nullptr, {}, 10), ElementsAre());
}

TEST(StopIds, OutsideTheVocabularyAreRefusedAndAMalformedGenerationConfigIsIgnored) {
  EXPECT_THAT(message_of([] { stop_ids(json{{"eos_token_id", 10}}, nullptr, {}, 10); }),
              HasSubstr("end token id 10 (accepted: 0..9"));
  EXPECT_THAT(message_of([] { stop_ids(json::object(), json{{"eos_token_id", -1}}, {}, 10); }),
              HasSubstr("end token id -1"));
  EXPECT_THAT(message_of([] { stop_ids(json{{"eos_token_id", "x"}}, nullptr, {}, 10); }),
              HasSubstr("eos_token_id is \"x\""));
  EXPECT_THAT(message_of([] { stop_ids(json{{"eos_token_id", 3}}, nullptr, std::array{3, 12}, 10); }),
              HasSubstr("tokenizer's eos_token: end token id 12 (accepted: 0..9"));
  EXPECT_THAT(stop_ids(json{{"eos_token_id", 3}}, json{{"eos_token_id", "x"}}, {}, 10), ElementsAre(3));
}

QuantizationMap map_of(const char* text) { return QuantizationMap::from_config(json::parse(text), "config.json"); }
std::string refusal(const char* text) {
  return message_of([&] { map_of(text); });
}

TEST(QuantizationMap, GivesDefaultsByModeAndOverridesByCanonicalPath) {
  EXPECT_EQ(map_of(R"({"quantization": {}})").parameters("x"),
            (QuantizationParameters{QuantizationMode::affine, 4, 64}));
  EXPECT_EQ(map_of(R"({"quantization": {"mode": "nvfp4"}})").parameters("x"),
            (QuantizationParameters{QuantizationMode::nvfp4, 4, 16}));
  EXPECT_EQ(map_of(R"({"quantization": {"mode": "mxfp8"}})").parameters("x"),
            (QuantizationParameters{QuantizationMode::mxfp8, 8, 32}));
  const auto map = map_of(R"({"text_config": {"quantization_config": {"group_size": 32, "bits": 4,
      "language_model.model.layers.0.mlp.up_proj": {"bits": 8}, "language_model.lm_head": {"mode": "mxfp4"}, "model.a": true}}})");
  EXPECT_EQ(map.parameters("model.layers.0.mlp.up_proj"), (QuantizationParameters{QuantizationMode::affine, 8, 32}));
  EXPECT_EQ(map.parameters("lm_head"), (QuantizationParameters{QuantizationMode::mxfp4, 4, 32}));
  EXPECT_EQ(map.parameters("model.a"), (QuantizationParameters{QuantizationMode::affine, 4, 32}));
  EXPECT_EQ(map.parameters("model.b"), (QuantizationParameters{QuantizationMode::affine, 4, 32}));
}

TEST(QuantizationMap, FalseOrNoMapWithScalesPresentNamesThePath) {
  EXPECT_THAT(message_of([] { map_of(R"({"quantization": {"model.a": false}})").parameters("model.a"); }),
              HasSubstr("says false for 'model.a', but the file holds its scales"));
  EXPECT_THAT(message_of([] { map_of("{}").parameters("model.a"); }),
              HasSubstr("no quantization parameters, but the file holds scales of 'model.a'"));
}

TEST(QuantizationMap, RefusesWhatItCannotRead) {
  EXPECT_THAT(refusal(R"({"quantization": {"bits": 7}})"),
              HasSubstr("quantization.bits is 7 (accepted: 2, 3, 4, 5, 6, 8)"));
  EXPECT_THAT(refusal(R"({"quantization": {"group_size": 16}})"),
              HasSubstr("quantization.group_size is 16 (accepted: 32, 64, 128)"));
  EXPECT_THAT(refusal(R"({"quantization": {"mode": "fp3"}})"),
              HasSubstr("quantization.mode is \"fp3\" (accepted: affine, mxfp4, nvfp4, mxfp8)"));
  EXPECT_THAT(refusal(R"({"quantization": {"mode": "mxfp4", "group_size": 64}})"),
              HasSubstr("group_size is 64 (accepted: 32 in mode mxfp4)"));
  EXPECT_THAT(refusal(R"({"quantization": {"model.a": {"bits": "4"}}})"),
              HasSubstr("quantization.model.a.bits is \"4\""));
  EXPECT_THAT(refusal(R"({"quantization": {"model.a": 4}})"),
              HasSubstr("quantization.model.a is 4 (accepted: true, false,"));
  EXPECT_THAT(refusal(R"({"quantization": 4})"), HasSubstr("quantization is number (accepted: an object)"));
  EXPECT_THAT(refusal(R"({"quantization_config": {"quant_method": "awq"}})"),
              HasSubstr("quant_method 'awq' is not available"));
  EXPECT_THAT(refusal(R"({"quantization": {"quantize_activations": true}})"),
              HasSubstr("quantize_activations is true (accepted: false)"));
  EXPECT_THAT(refusal(R"({"quantization": {"model.a.b": {}, "language_model.model.a.b": {}}})"),
              HasSubstr("names module 'model.a.b' twice"));
}

}  // namespace
}  // namespace outrider
