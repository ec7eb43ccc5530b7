// MTP rows against float32 references: the tiny random models, and the small model of the gates of models.md 6.1.
#include "engine/draft_scoring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/model_fixture.h"
#include "weights/float_bits.h"

namespace outrider {
namespace {

struct DraftRows {
  std::vector<float> hidden, logits;
};

DraftRows score(Runner& runner, std::span<const std::int32_t> ids, std::span<const float> hiddens, DraftInput input,
                std::int64_t chunk = 64) {
  DraftRows out;
  std::int64_t next = 0;
  score_drafts(*runner.model, *runner.device, ids, hiddens, input, chunk, [&](const DraftScores& scores) {
    EXPECT_EQ(scores.position, next);
    out.hidden.insert(out.hidden.end(), scores.hidden.begin(), scores.hidden.end());
    out.logits.insert(out.logits.end(), scores.logits.begin(), scores.logits.end());
    next = static_cast<std::int64_t>(out.hidden.size()) / runner.declaration().width;
  });
  return out;
}

double largest(const std::vector<float>& values) {
  double out = 0;
  for (const float v : values) out = std::max(out, std::abs(static_cast<double>(v)));
  return out;
}

// Of the first golden.size() values; NaN counts as infinite.
double max_difference(const std::vector<float>& ours, const std::vector<float>& golden) {
  EXPECT_GE(ours.size(), golden.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(ours.size(), golden.size()); ++i) {
    const double delta = std::abs(static_cast<double>(ours[i]) - static_cast<double>(golden[i]));
    worst = delta <= worst ? worst : std::isnan(delta) ? INFINITY : delta;
  }
  return worst;
}

TEST(DraftScoring, MeetsTheGoldensOfBothTapsInBothPrecisions) {
  for (const char* name : {"qwen3_5/mtp_pre_norm", "qwen3_5/mtp_post_norm_wrapped"}) {
    const SafetensorsFile golden(goldens() / name / "golden.safetensors");
    const auto ids = read_tensor<std::int32_t>(golden, "ids");
    const auto hidden = read_tensor<float>(golden, "mtp1_hidden"), logits = read_tensor<float>(golden, "mtp1_logits");
    for (const auto& [precision, logit_bound, hidden_bound] :
         {std::tuple(Precision::f32, 1e-4, 1e-4), std::tuple(Precision::packed, 2e-3, 3e-3)}) {
      Runner runner(goldens() / name, precision);
      const DraftRows rows = score(runner, ids, runner.run(ids).hidden, DraftInput::target);
      EXPECT_LE(max_difference(rows.hidden, hidden), hidden_bound * largest(hidden)) << name;
      EXPECT_LE(max_difference(rows.logits, logits), logit_bound * largest(logits)) << name;
    }
  }
}

TEST(DraftScoring, TheOtherTapIsFarFromTheGolden) {
  const auto path = goldens() / "qwen3_5/mtp_pre_norm";
  const SafetensorsFile golden(path / "golden.safetensors");
  const auto ids = read_tensor<std::int32_t>(golden, "ids");
  const auto hidden = read_tensor<float>(golden, "mtp1_hidden");
  Runner runner(path, Precision::f32);
  SourceOptions post;
  post.mtp_hidden = HiddenTap::post_norm;
  runner.source = open_model_source(path, post);
  runner.model = load_model(*runner.source, Precision::f32, *runner.device);
  const DraftRows rows = score(runner, ids, runner.run(ids).hidden, DraftInput::target);
  EXPECT_GT(max_difference(rows.hidden, hidden), 1e-2 * largest(hidden));
}

TEST(DraftScoring, ChunksDoNotMatter) {
  const auto path = goldens() / "qwen3_5/mtp_post_norm_wrapped";
  const auto ids = read_tensor<std::int32_t>(SafetensorsFile(path / "golden.safetensors"), "ids");
  Runner runner(path, Precision::packed);
  const std::vector<float> hiddens = runner.run(ids).hidden;
  const DraftRows whole = score(runner, ids, hiddens, DraftInput::target, 512);
  for (const std::int64_t chunk : {1, 2, 3, 5, 64}) {
    const DraftRows cut = score(runner, ids, hiddens, DraftInput::target, chunk);
    EXPECT_TRUE(cut.hidden == whole.hidden && cut.logits == whole.logits) << chunk;
  }
}

TEST(DraftScoring, AModelWithoutAHeadSaysSo) {
  Runner runner(goldens() / "qwen3_5/hv1", Precision::packed);
  const std::vector<std::int32_t> ids = {1, 2};
  const std::vector<float> hiddens(2 * 64);
  EXPECT_THROW(score(runner, ids, hiddens, DraftInput::target), Error);
}

// --- The gates of models.md 6.1 on the quantized copy that comes with the program ---

std::int32_t argmax(const float* logits, std::int64_t width) {
  return static_cast<std::int32_t>(std::max_element(logits, logits + width) - logits);
}

std::int64_t same_argmax(const std::vector<float>& logits, const std::vector<std::int32_t>& golden,
                         std::int64_t width) {
  std::int64_t same = 0;
  for (std::size_t r = 0; r < golden.size(); ++r)
    same += argmax(logits.data() + static_cast<std::int64_t>(r) * width, width) == golden[r] ? 1 : 0;
  return same;
}

// Sum over rows of KL(golden || ours), in double.
double divergence(const std::vector<float>& ours, const std::vector<float>& golden, std::int64_t width) {
  const auto log_sum = [&](const float* z) {
    const double top = *std::max_element(z, z + width);
    double sum = 0;
    for (std::int64_t i = 0; i < width; ++i) sum += std::exp(z[i] - top);
    return top + std::log(sum);
  };
  double total = 0;
  for (std::size_t at = 0; at < golden.size(); at += static_cast<std::size_t>(width)) {
    const float *p = golden.data() + at, *q = ours.data() + at;
    const double of_p = log_sum(p), of_q = log_sum(q);
    for (std::int64_t i = 0; i < width; ++i) total += std::exp(p[i] - of_p) * ((p[i] - of_p) - (q[i] - of_q));
  }
  return total;
}

struct Gates {
  double hidden, logits, divergence, head_hidden, head_logits;
  std::int64_t wrong_argmax;  // of all prompts, and of the second pass
};

void expect_gates(Precision precision, const Gates& gates) {
  Runner runner(std::filesystem::path(OUTRIDER_SOURCE_DIR) / "models/tiny-qwen3_5-mtp", precision);
  const SafetensorsFile golden(goldens() / "small_qwen3_5.safetensors");
  const std::int64_t vocab = runner.declaration().vocab;
  double kl = 0;
  std::int64_t rows = 0, wrong = 0, second_wrong = 0;
  for (const char* prompt : {"0.", "1.", "2.", "3."}) {
    const auto of = [&](const char* name) { return prompt + std::string(name); };
    const auto ids = read_tensor<std::int32_t>(golden, of("ids"));
    const Sequence s = runner.run(ids);
    const auto logits = read_tensor<float>(golden, of("logits"));
    EXPECT_LE(max_difference(s.hidden, read_tensor<float>(golden, of("hidden_pre_norm"))), gates.hidden);
    EXPECT_LE(max_difference(s.logits, logits), gates.logits);
    kl += divergence(s.logits, logits, vocab);
    rows += static_cast<std::int64_t>(logits.size()) / vocab;
    const auto greedy = read_tensor<std::int32_t>(golden, of("greedy_argmax"));
    wrong += static_cast<std::int64_t>(greedy.size()) - same_argmax(s.logits, greedy, vocab);
    const DraftRows first = score(runner, ids, s.hidden, DraftInput::target);
    EXPECT_LE(max_difference(first.hidden, read_tensor<float>(golden, of("mtp1_hidden"))), gates.head_hidden);
    std::vector<float> head_logits;
    for (const std::uint16_t half : read_tensor<std::uint16_t>(golden, of("mtp1_logits")))
      head_logits.push_back(load_float(reinterpret_cast<const std::byte*>(&half), FloatType::f16));
    EXPECT_LE(max_difference(first.logits, head_logits), gates.head_logits);
    // A second full pass over the first one's outputs.
    const DraftRows second = score(runner, std::span(ids).subspan(1), first.hidden, DraftInput::chained);
    const auto second_golden = read_tensor<std::int32_t>(golden, of("mtp2_argmax"));
    second_wrong += static_cast<std::int64_t>(second_golden.size()) - same_argmax(second.logits, second_golden, vocab);
  }
  EXPECT_LE(kl / static_cast<double>(rows), gates.divergence);
  EXPECT_LE(wrong, gates.wrong_argmax);
  EXPECT_LE(second_wrong, gates.wrong_argmax);
}

TEST(SmallModel, MeetsTheGatesOfTheReferencePrecision) {
  expect_gates(Precision::f32, {5e-4, 2e-4, 1e-8, 2e-4, 2e-2, 0});
}
TEST(SmallModel, MeetsTheGatesOfTheDefaultPrecision) {
  expect_gates(Precision::packed, {5e-2, 2e-2, 1e-6, 3e-2, 4e-2, 1});
}

}  // namespace
}  // namespace outrider
