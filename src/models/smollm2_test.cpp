// The real SmolLM2-135M-Instruct (GGUF, Q4_1) against transformers in float32 on the same dequantized weights.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/model_fixture.h"

namespace outrider {
namespace {

// Where the two largest logits are closer than this, rounding may decide.
constexpr double kNearTie = 5e-3;

// scripts/fetch_test_data puts it there; empty when it is not.
std::filesystem::path model_file() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base =
      cache != nullptr ? std::filesystem::path(cache) : std::filesystem::path(home != nullptr ? home : "/") / ".cache";
  const std::filesystem::path file = base / "outrider/test-data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(file) ? file : std::filesystem::path();
}

TEST(SmolLm2, ContinuesEveryPromptAsTheReferenceDoesUpToANearTie) {
  const std::filesystem::path file = model_file();
  if (file.empty()) GTEST_SKIP() << "SmolLM2-135M-Instruct.Q4_1.gguf is absent: run scripts/fetch_test_data";
  std::ifstream in(goldens() / "smollm2/prompts.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  Runner runner(file, Precision::packed, 0, nullptr, 128);
  for (const nlohmann::json& prompt : golden["prompts"]) {
    // The reference's own tokens are fed: each position is judged, not just those before a first difference.
    std::vector<std::int32_t> ids = prompt["ids"];
    const std::vector<std::int32_t> greedy = prompt["greedy"];
    const std::vector<double> gap = prompt["gap"];
    const std::size_t start = ids.size() - 1;
    ids.insert(ids.end(), greedy.begin(), greedy.end() - 1);
    Sequence s = runner.run(ids, 128);
    std::vector<std::int32_t> best(ids.size());
    std::vector<std::uint32_t> faults(ids.size());
    const auto tokens = static_cast<std::int64_t>(ids.size()), vocab = runner.declaration().vocab;
    runner.device->argmax({s.logits.data(), tokens, vocab, vocab}, best.data(), faults.data());
    for (std::size_t t = 0; t < greedy.size(); ++t) {
      if (gap[t] < kNearTie) continue;
      EXPECT_EQ(best[start + t], greedy[t]) << prompt["name"] << ", token " << t;
    }
  }
}

}  // namespace
}  // namespace outrider
