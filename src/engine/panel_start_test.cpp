// Starts from a panel file (weights/panel_file.h) against starts that pack: the same bytes, the same plan.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/log.h"
#include "base/test_directory.h"
#include "engine/engine.h"
#include "engine/scripted_model.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// A copy of a golden model in a directory that may be written to.
class PanelStart : public testing::TestWithParam<const char*> {
 protected:
  PanelStart() {
    set_log(LogLevel::error, LogFormat::text);
    const fs::path golden = fs::path(OUTRIDER_SOURCE_DIR) / "oracles/goldens/models" / GetParam();
    for (const auto& entry : fs::directory_iterator(golden))
      fs::copy(entry.path(), directory_.path() / entry.path().filename());
  }

  LoadOptions options(PanelUse use, Precision precision = Precision::packed) const {
    LoadOptions out;
    out.model = directory_.path().string();
    out.threads = 2;
    out.context_tokens = 200;
    out.panels = use;
    out.precision = precision;
    return out;
  }
  fs::path panel_file() const { return directory_.path() / ".outrider/model.panels"; }

  TestDirectory directory_;
};

// Logits of a prompt in chunks of 7, then 12 greedy tokens.
struct Outcome {
  std::vector<float> logits;
  std::vector<std::int32_t> ids;
  bool operator==(const Outcome& other) const {
    return ids == other.ids && logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};
Outcome outcome(Engine& engine) {
  Request scored, continued;
  for (std::int32_t i = 0; i < 40; ++i) scored.ids.push_back(i * 7 % static_cast<std::int32_t>(engine.facts().vocab));
  continued.ids = scored.ids;
  scored.want = Want::prompt_logits;
  scored.max_tokens = 0;
  continued.max_tokens = 12;
  continued.sampling.ignore_eos = true;
  std::map<RequestId, Answer> answers;
  const RequestId first = engine.submit(scored).value(), second = engine.submit(continued).value();
  while (engine.step([&](const Event& event) { collect(answers, event); })) {
  }
  EXPECT_FALSE(answers[first].logits.empty());
  EXPECT_EQ(answers[second].ids.size(), 12u);
  return {answers[first].logits, answers[second].ids};
}

TEST_P(PanelStart, GivesTheLogitsOfTheSource) {
  const Outcome packed = outcome(*Engine::load(options(PanelUse::off)));
  EXPECT_FALSE(fs::exists(panel_file()));
  for (const LoadTimes::Weights expected : {LoadTimes::Weights::packed, LoadTimes::Weights::mapped}) {
    const auto engine = Engine::load(options(PanelUse::always));
    EXPECT_EQ(engine->load_times().weights, expected);
    EXPECT_GT(engine->load_times().load_ms, 0);
    EXPECT_TRUE(outcome(*engine) == packed);
  }
  EXPECT_TRUE(fs::exists(panel_file()));
}

TEST_P(PanelStart, LeavesTheReferencePrecisionToTheSource) {
  const Outcome reference = outcome(*Engine::load(options(PanelUse::off, Precision::f32)));
  {
    const auto engine = Engine::load(options(PanelUse::always));
  }
  ASSERT_TRUE(fs::exists(panel_file()));
  const auto time = fs::last_write_time(panel_file());
  const auto engine = Engine::load(options(PanelUse::always, Precision::f32));
  EXPECT_EQ(engine->load_times().weights, LoadTimes::Weights::packed);
  EXPECT_TRUE(outcome(*engine) == reference);
  EXPECT_EQ(fs::last_write_time(panel_file()), time);
}

TEST_P(PanelStart, PlansAndChargesMappedWeightsAsPackedOnes) {
  MemoryPlan packed;
  {
    packed = Engine::load(options(PanelUse::always))->plan();
  }
  const std::size_t before = memory_use(MemoryPart::weights).now_bytes;
  reset_memory_peaks();
  const auto engine = Engine::load(options(PanelUse::automatic));
  ASSERT_EQ(engine->load_times().weights, LoadTimes::Weights::mapped);
  EXPECT_EQ(engine->plan().parts, packed.parts);
  EXPECT_EQ(plan_memory(options(PanelUse::automatic)).parts.at(MemoryPart::weights),
            packed.parts.at(MemoryPart::weights));
  EXPECT_EQ(memory_use(MemoryPart::weights).now_bytes - before, packed.parts.at(MemoryPart::weights));
  EXPECT_EQ(memory_use(MemoryPart::weights).peak_bytes - before, packed.parts.at(MemoryPart::weights));
}

INSTANTIATE_TEST_SUITE_P(Goldens, PanelStart,
                         testing::Values("mlx_b4_g64", "mlx_b3_g64", "mlx_mxfp4", "mlx_nvfp4", "mlx_mixed",
                                         "mlx_b4_g32_bias", "llama_gqa_4", "llama_sharded", "llama_tied_by_absence",
                                         "llama_stray_tensors", "../qwen3_5/mtp_pre_norm", "../qwen3_5/fused"),
                         [](const auto& model) {
                           const std::string name = model.param;
                           return name.substr(name.find_last_of('/') + 1);
                         });

}  // namespace
}  // namespace outrider
