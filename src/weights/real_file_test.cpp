// SmolLM2-135M-Instruct.Q4_1.gguf, when scripts/fetch_test_data has put it into the cache; skipped loudly otherwise.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "weights/convert.h"
#include "weights/pack.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

std::filesystem::path smollm2() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base = cache != nullptr && *cache != 0
                                         ? std::filesystem::path(cache)
                                         : std::filesystem::path(home != nullptr ? home : ".") / ".cache";
  return base / "outrider" / "test-data" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

class RealFile : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(smollm2()))
      GTEST_SKIP() << "SKIPPED: " << smollm2() << " is absent; run scripts/fetch_test_data";
  }
};

TEST_F(RealFile, SmolLm2OpensAsALlamaWithItsDimensions) {
  const auto model = open_model_source(smollm2());
  EXPECT_EQ(model->config()["hidden_size"], 576);
  EXPECT_EQ(model->config()["num_hidden_layers"], 30);
  EXPECT_EQ(model->config()["num_key_value_heads"], 3);
  EXPECT_EQ(model->config()["rope_theta"], 100000.0);
  EXPECT_EQ(model->config()["tie_word_embeddings"], true);
  EXPECT_EQ(model->generation_config()["eos_token_id"], 2);
  const ModuleInfo embedding = model->module("model.embed_tokens", 49152, 576),
                   q = model->module("model.layers.29.self_attn.q_proj", 576, 576);
  EXPECT_EQ(embedding.bits, 8);
  EXPECT_EQ(embedding.type, FloatType::f16);
  EXPECT_EQ(q.bits, 4);
  EXPECT_EQ(q.group, 32);
}

TEST_F(RealFile, SmolLm2ConvertsLosslessly) {
  TestDirectory dir;
  const ConvertResult result = convert(smollm2(), dir / "out", {});
  EXPECT_LT(result.bits_per_weight, 6.0);
  const auto before = open_model_source(smollm2()), after = open_model_source(result.out);
  for (const char* path : {"model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.7.self_attn.k_proj",
                           "model.layers.29.mlp.down_proj"}) {
    const PackedWeight x = before->load_matrix(path, -1, -1, Precision::packed),
                       y = after->load_matrix(path, -1, -1, Precision::packed);
    ASSERT_EQ(x.storage.size(), y.storage.size());
    EXPECT_EQ(std::memcmp(x.storage.data(), y.storage.data(), x.storage.size()), 0) << path;
  }
}

}  // namespace
}  // namespace outrider
