#include "engine/speed.h"

#include <gtest/gtest.h>

#include "engine/step_bench.h"

namespace outrider {
namespace {

// Round numbers: 10 GB/s, 100 G multiply-adds/s in 16 bit, 50 in f32.
constexpr MachineLimits kMachine = {
    .read_gb_per_s = 10, .f32_gmac_per_s = 50, .i16_gmac_per_s = 100, .i8_gmac_per_s = 200};
constexpr std::uint64_t kKvBytes = 1'000'000;  // per token

// One coded Linear of 1 GB and 2 G multiply-adds per token, one dense of 2 GB and 1 G, a head of 0.5 GB and 0.5 G.
ModelWork work() {
  ModelWork w;
  w.layers = {{1'000'000'000, 2'000'000'000, true}, {2'000'000'000, 1'000'000'000, false}};
  w.head = {500'000'000, 500'000'000, true};
  w.attention_macs = 1'000'000;
  return w;
}

double least(const StepShape& shape) { return least_seconds(work(), kKvBytes, kMachine, shape); }

TEST(LeastSeconds, OfADecodeAreItsBytesAtTheReadBandwidth) {
  // 3.5 GB of weights, and KV rows of one token.
  EXPECT_NEAR(least({}), 0.35 + 1e6 / 10e9, 1e-12);
}

TEST(LeastSeconds, OfAContextAreKvBytesOrAttentionWhicheverIsMore) {
  EXPECT_NEAR(least({.context = 4999}), 0.35 + 5000 * 1e6 / 10e9, 1e-12);
  ModelWork heavy = work();
  heavy.attention_macs = 100'000'000;
  EXPECT_NEAR(least_seconds(heavy, kKvBytes, kMachine, {.context = 4999}), 0.35 + 5000 * 1e8 / 50e9, 1e-12);
}

TEST(LeastSeconds, OfManyTokensAreMultiplyAddsOfEachKind) {
  // 400 tokens: 16-bit 800 G / 100, f32 400 G / 50; one row of the head; 80,200 pairs of query and key.
  EXPECT_NEAR(least({.tokens = 400}), 8 + 8 + 0.05 + std::max(400e6 / 10e9, 80200 * 1e6 / 50e9), 1e-9);
}

TEST(LeastSeconds, OfAVerifyWindowCountTheHeadOfEveryToken) {
  const double window = least({.tokens = 3, .head = StepShape::Head::every});
  // The coded Linear is bound by bytes (0.1 s against 0.06), the dense one too (0.2 against 0.06), the head by bytes.
  EXPECT_NEAR(window, 0.1 + 0.2 + 0.05 + 3 * 1e6 / 10e9, 1e-12);
  const double wide = least({.tokens = 20, .head = StepShape::Head::every});
  EXPECT_NEAR(wide, 0.4 + 0.4 + 0.1 + std::max(20e6 / 10e9, 210 * 1e6 / 50e9), 1e-9);
}

TEST(LeastSeconds, OfALongPromptAreThoseOfItsSteps) {
  double steps = 0;
  ModelWork headless = work();
  headless.head = {};
  for (const std::int64_t done : {0, 512})
    steps += least_seconds(headless, kKvBytes, kMachine, {.tokens = 512, .context = done});
  steps += least({.tokens = 76, .context = 1024});
  EXPECT_NEAR(least({.tokens = 1100}), steps, 1e-9);
}

TEST(LeastSeconds, OfRowsShareTheWeightsAndNotTheKvRows) {
  EXPECT_NEAR(least({.rows = 2, .context = 999}), 0.35 + 2 * 1000 * 1e6 / 10e9, 1e-12);
}

TEST(Prediction, IsAShareOfTheLimit) {
  ModelPlan plan;
  plan.work = work();
  plan.declaration.kv = {.layers = 1, .kv_heads = 1, .head_width = 1 << 18, .type = FloatType::f16};
  const SpeedPrediction p = predict(plan, kMachine, 5000);
  const std::uint64_t kv = plan.declaration.kv.token_bytes();
  EXPECT_DOUBLE_EQ(p.decode_tokens_per_s, kDecodeShare / least_seconds(plan.work, kv, kMachine, {}));
  EXPECT_DOUBLE_EQ(p.decode_at_context_tokens_per_s,
                   kDecodeShare / least_seconds(plan.work, kv, kMachine, {.context = 4999}));
  EXPECT_LT(p.decode_at_context_tokens_per_s, p.decode_tokens_per_s);
  EXPECT_DOUBLE_EQ(p.prompt_tokens_per_s, 512 * kPromptShare / least_seconds(plan.work, kv, kMachine, {.tokens = 512}));
}

std::string golden(const char* name) { return std::string(OUTRIDER_SOURCE_DIR) + "/oracles/goldens/models/" + name; }

// What a plain step does not read: the MTP head's tensors.
TEST(ModelWork, OfAPlainStepHoldsNoMtpHead) {
  const auto plan_of = [](MtpUse mtp) {
    SourceOptions options;
    options.mtp = mtp;
    return plan_model(*open_model_source(golden("../qwen3_5/mtp_pre_norm"), options), Precision::packed);
  };
  const ModelPlan with = plan_of(MtpUse::automatic), without = plan_of(MtpUse::off);
  ASSERT_GT(with.weight_bytes, without.weight_bytes);
  EXPECT_EQ(step_weight_bytes(with), step_weight_bytes(without));
}

TEST(ModelWork, CountsEveryLinearAndTheHead) {
  for (const char* name : {"mlx_b4_g64", "llama_bf16", "llama_tied"}) {
    const auto source = open_model_source(golden(name));
    const ModelPlan plan = plan_model(*source, Precision::packed);
    std::uint64_t bytes = plan.work.head.bytes;
    for (const LinearWork& linear : plan.work.layers) bytes += linear.bytes;
    std::uint64_t norms = 0;
    for (const auto& [kind, kind_bytes] : plan.bytes_by_kind)
      if (kind == "norm") norms = kind_bytes;
    EXPECT_EQ(bytes + norms, step_weight_bytes(plan)) << name;
    std::int64_t macs = 0, targets = 0;
    for (const LinearWork& linear : plan.work.layers) macs += linear.macs;
    for (const LoraTarget& target : plan.declaration.lora_targets) targets += target.in * target.out;
    EXPECT_EQ(macs, targets) << name;
    EXPECT_EQ(plan.work.head.macs, plan.declaration.vocab * plan.declaration.width) << name;
  }
}

class StepBenchOf : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Graphs, StepBenchOf, testing::Values("models/mlx_b4_g64", "qwen3_5/mtp_pre_norm"));

TEST_P(StepBenchOf, RunsEveryShapeAndKeepsItsContexts) {
  LoadOptions options;
  options.model = std::string(OUTRIDER_SOURCE_DIR "/oracles/goldens/") + GetParam();
  options.threads = 2;
  const std::vector<StepShape> shapes = {{},
                                         {.context = 100},
                                         {.tokens = 600},
                                         {.rows = 3},
                                         {.tokens = 4, .head = StepShape::Head::every},
                                         {.rows = 2, .tokens = 2, .context = 64, .head = StepShape::Head::every}};
  StepBench bench(options, shapes);
  for (int round = 0; round < 2; ++round)
    for (const StepShape& shape : shapes) EXPECT_GT(bench.seconds(shape), 0);
  EXPECT_TRUE(bench.memory().fits());
  EXPECT_GT(bench.least_seconds(shapes[1], kMachine), bench.least_seconds(shapes[0], kMachine));
}

TEST(StepBench, RefusesWhatDoesNotFitWithNumbers) {
  LoadOptions options;
  options.model = golden("mlx_b4_g64");
  options.memory_budget_bytes = std::uint64_t{100} << 20;  // less than the buffer of the probe
  const StepShape shape;
  try {
    StepBench bench(options, {&shape, 1});
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
    EXPECT_NE(std::string(error.what()).find("104857600"), std::string::npos) << error.what();
  }
  options.memory_budget_bytes = 0;
  const StepShape beyond = {.context = std::int64_t{1} << 40};
  EXPECT_THROW(StepBench(options, {&beyond, 1}), Error);
}

TEST(MachineProbe, MeasuresEveryLimit) {
  const auto device = make_cpu_device(2);
  MachineProbe probe(*device, std::size_t{4} << 20);
  const MachineLimits limits = probe.measure(0.002);
  for (const double value :
       {limits.read_gb_per_s, limits.f32_gmac_per_s, limits.i16_gmac_per_s, limits.i8_gmac_per_s}) {
    EXPECT_GT(value, 0.1);
    EXPECT_LT(value, 1e6);
  }
  MachineProbe none(*device, 1000);
  EXPECT_EQ(none.read_gb_per_s(0.001), 0);
}

TEST(PredictSpeed, SaysNothingOfAPlanThatDoesNotFit) {
  LoadOptions options;
  options.model = golden("mlx_b4_g64");
  options.memory_budget_bytes = std::uint64_t{60} << 20;
  EXPECT_FALSE(predict_speed(options, plan_memory(options)));
  options.memory_budget_bytes = 0;
  const auto speed = predict_speed(options, plan_memory(options));
  ASSERT_TRUE(speed);
  EXPECT_GT(speed->decode_tokens_per_s, 0);
}

}  // namespace
}  // namespace outrider
