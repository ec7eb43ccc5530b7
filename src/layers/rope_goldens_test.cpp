// Inverse frequencies, cos and sin of every RoPE kind against the tables of oracles/models/rope_tables.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "layers/rope.h"
#include "weights/safetensors.h"

namespace outrider {
namespace {

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<float> values(tensor != nullptr ? tensor->bytes / 4 : 0);
  if (tensor != nullptr) std::memcpy(values.data(), file.bytes(*tensor).data(), tensor->bytes);
  return values;
}

TEST(RopeGoldens, FrequenciesCosAndSinOfEveryKind) {
  const std::filesystem::path folder = std::filesystem::path(OUTRIDER_SOURCE_DIR) / "oracles/goldens/models";
  std::ifstream in(folder / "rope_tables.json");
  const nlohmann::json tables = nlohmann::json::parse(in);
  const SafetensorsFile file(folder / "rope_tables.safetensors");
  const KernelTable& kernels = *kernel_table(Isa::portable);
  ASSERT_GT(tables["entries"].size(), 20U);
  for (const nlohmann::json& entry : tables["entries"]) {
    const std::string name = entry["name"];
    const nlohmann::json& config = entry["config"];
    const Rope rope(read_rope(ConfigReader(config, name), config["head_dim"]));
    std::vector<float> computed(static_cast<std::size_t>(rope.half())), cos(computed), sin(computed);
    const std::int64_t length = entry["length"].is_null() ? 0 : entry["length"].get<std::int64_t>();
    const RowFrequencies ours = rope.frequencies(length, computed.data());
    EXPECT_FLOAT_EQ(ours.factor, entry["attention_factor"].get<float>()) << name;
    const std::vector<float> exact = floats(file, name + ".inv_freq"), reference = floats(file, name + ".inv_freq_hf");
    const std::vector<float> exact_cos = floats(file, name + ".cos"), exact_sin = floats(file, name + ".sin");
    ASSERT_EQ(exact.size(), computed.size()) << name;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_FLOAT_EQ(ours.inv_freq[i], exact[i]) << name << " " << i;
      EXPECT_NEAR(ours.inv_freq[i] / reference[i], 1, 2e-6) << name << " " << i;  // its powers are float32
    }
    // The product of position and frequency is what cos sees: where a frequency differs in its last bit, so may they.
    for (std::size_t p = 0; p < tables["positions"].size(); ++p) {
      kernels.rope_angles(tables["positions"][p], exact.data(), rope.half(), ours.factor, cos.data(), sin.data());
      for (std::size_t i = 0; i < exact.size(); ++i) {
        EXPECT_NEAR(cos[i], exact_cos[p * exact.size() + i], 1e-6) << name << " " << p << " " << i;
        EXPECT_NEAR(sin[i], exact_sin[p * exact.size() + i], 1e-6) << name << " " << p << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace outrider
