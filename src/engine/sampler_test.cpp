#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/processors.h"

namespace outrider {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu_device(1);
  return *device;
}

struct Asked {
  SamplingParams params;
  std::vector<std::uint32_t> allowed = {};
  std::vector<std::int32_t> history = {0};
  std::int64_t prompt_tokens = 1;
  std::int64_t t = 0;
  std::vector<std::int32_t> end_tokens;

  ChoosingRow row(std::int64_t seed = 1) const {
    return {&params, history, prompt_tokens, t, seed, end_tokens, allowed};
  }
};

Choice choose(std::vector<float> logits, const Asked& asked, std::int64_t tokenizer_size = 1000) {
  const auto vocab = static_cast<std::int64_t>(logits.size());
  Sampler sampler(vocab, tokenizer_size, {});
  const std::vector<ChoosingRow> rows = {asked.row()};
  std::vector<Choice> out(1);
  sampler.choose(cpu(), {logits.data(), 1, vocab, vocab}, rows, out);
  return out[0];
}

std::vector<float> processed(std::vector<float> z, const Asked& asked) {
  apply_processors(z, asked.row());
  return z;
}

TEST(Processors, RepetitionScalesEachSeenTokenOnceBySign) {
  Asked a;
  a.params.repetition_penalty = 2;
  a.history = {0, 1, 1, 1};
  EXPECT_THAT(processed({4, -4, 4}, a), testing::ElementsAre(2, -8, 4));
}

TEST(Processors, RepetitionLooksAtTheLastWindowOfTheWholeHistory) {
  Asked a;
  a.params.repetition_penalty = 2;
  a.params.repetition_context_size = 2;
  a.history = {0, 1, 2};
  a.prompt_tokens = 2;
  EXPECT_THAT(processed({4, 4, 4}, a), testing::ElementsAre(4, 2, 2));
  a.params.repetition_scope = PenaltyScope::generated;
  EXPECT_THAT(processed({4, 4, 4}, a), testing::ElementsAre(4, 4, 2));
}

TEST(Processors, PresenceTakesOffOnceAndFrequencyPerTimeOfGeneratedTokens) {
  Asked a;
  a.params.presence_penalty = 1;
  a.params.frequency_penalty = 0.5;
  a.history = {0, 0, 1, 2, 2, 2};
  a.prompt_tokens = 2;
  EXPECT_THAT(processed({4, 4, 4}, a), testing::ElementsAre(4, 2.5f, 1.5f));
  a.params.presence_scope = a.params.frequency_scope = PenaltyScope::all;
  EXPECT_THAT(processed({4, 4, 4}, a), testing::ElementsAre(2, 2.5f, 1.5f));
}

TEST(Processors, RunInTheFixedOrder) {
  Asked a;
  a.params.logit_bias = {{0, -6.0f}};
  a.params.repetition_penalty = 2;
  a.params.presence_penalty = 1;
  a.params.presence_scope = PenaltyScope::all;
  // (4 - 6) is negative, so it is multiplied: -4, then 1 off. Another order gives -3 or -5.5.
  EXPECT_THAT(processed({4, 0}, a), testing::ElementsAre(-5, 0));
}

TEST(Processors, EndTokensAreMaskedBeforeMinTokensAndAlwaysWithIgnoreEos) {
  Asked a;
  a.end_tokens = {1};
  a.params.min_tokens = 3;
  a.t = 2;
  EXPECT_THAT(processed({1, 2}, a), testing::ElementsAre(1, kNever));
  a.t = 3;
  EXPECT_THAT(processed({1, 2}, a), testing::ElementsAre(1, 2));
  a.params.ignore_eos = true;
  EXPECT_THAT(processed({1, 2}, a), testing::ElementsAre(1, kNever));
}

TEST(Sampler, GreedyTakesTheLowestIdAmongTheLargest) { EXPECT_EQ(choose({1, 5, 5, 2}, {}).id, 1); }

TEST(Sampler, NeverChoosesIdsTheTokenizerLacks) {
  EXPECT_EQ(choose({1, 2, 9, 9}, {}, 2).id, 1);
  Asked a;
  a.params.temperature = 5;
  for (a.t = 0; a.t < 50; ++a.t) EXPECT_LT(choose({1, 2, 9, 9}, a, 2).id, 2);
}

TEST(Sampler, ANaNFailsThatRowOnly) {
  std::vector<float> z = {1, NAN, 2, 3, 4, 5, 7, 6, 1};
  Sampler sampler(3, 3, {});
  const Asked a;
  const std::vector<ChoosingRow> rows = {a.row(), a.row(), a.row()};
  std::vector<Choice> out(3);
  sampler.choose(cpu(), {z.data(), 3, 3, 3}, rows, out);
  ASSERT_TRUE(out[0].failure);
  EXPECT_EQ(out[0].failure->code, "numeric_error");
  EXPECT_EQ(out[1].id, 2);
  EXPECT_EQ(out[2].id, 0);
  EXPECT_EQ(choose({1, std::numeric_limits<float>::infinity()}, a).failure->code, "numeric_error");
}

// 1e-46 is a penalty of 0 in f32: z/0 is inf or NaN, of which no token can be drawn.
TEST(Sampler, APenaltyThatOverflowsALogitFailsThatRowOnly) {
  for (const double temperature : {0.0, 1.0}) {
    for (const float seen : {3.0f, 0.0f}) {
      std::vector<float> z = {seen, 1, 2, 3, 4, 5, 7, 6, 1};
      Sampler sampler(3, 3, {});
      Asked overflows, fine;
      overflows.params.repetition_penalty = 1e-46;
      overflows.params.temperature = temperature;
      const std::vector<ChoosingRow> rows = {overflows.row(), fine.row(), fine.row()};
      std::vector<Choice> out(3);
      sampler.choose(cpu(), {z.data(), 3, 3, 3}, rows, out);
      ASSERT_TRUE(out[0].failure) << "temperature " << temperature << ", logit " << seen;
      EXPECT_EQ(out[0].failure->code, "numeric_error");
      EXPECT_EQ(out[1].id, 2);
      EXPECT_EQ(out[2].id, 0);
    }
  }
}

TEST(Sampler, ANaNOfAMaskedEndTokenIsStillAFault) {
  Asked a;
  a.end_tokens = {1};
  a.params.ignore_eos = true;
  const Choice c = choose({1, NAN, 2}, a);
  ASSERT_TRUE(c.failure);
  EXPECT_EQ(c.failure->code, "numeric_error");
}

TEST(Sampler, WhatTheHeadSaysOfIdsTheTokenizerLacksIsNoFault) {
  const Choice c = choose({1, 2, NAN, std::numeric_limits<float>::infinity()}, {}, 2);
  EXPECT_FALSE(c.failure);
  EXPECT_EQ(c.id, 1);
}

TEST(Sampler, ABannedTokenStaysBannedUnderAnyRepetitionPenalty) {
  Asked a;
  a.params.repetition_penalty = 1e-46;
  a.history = {1, 2};  // 1 banned by bias, 2 unknown to the tokenizer: -inf * 0 would be NaN
  a.params.logit_bias = {{1, kNever}};
  const Choice c = choose({1, 2, 3}, a, 2);
  EXPECT_FALSE(c.failure);
  EXPECT_EQ(c.id, 0);
}

TEST(Sampler, ARowWithoutAnyTokenLeftFails) {
  Asked a;
  a.params.logit_bias = {{0, kNever}, {1, kNever}};
  EXPECT_EQ(choose({1, 2}, a).failure->code, "grammar_dead_end");
  a.params.temperature = 1;
  EXPECT_EQ(choose({1, 2}, a).failure->code, "grammar_dead_end");
}

TEST(Sampler, ReportsLogProbabilitiesAfterTheProcessors) {
  Asked a;
  a.params.logprobs = true;
  a.params.top_logprobs = 2;
  a.params.logit_bias = {{0, kNever}};
  const Choice c = choose({9, 1, 3, 2}, a);
  ASSERT_TRUE(c.logprob);
  const double total = std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  EXPECT_EQ(c.logprob->id, 2);
  EXPECT_NEAR(c.logprob->logprob, 3 - std::log(total), 1e-6);
  ASSERT_EQ(c.logprob->top.size(), 2u);
  EXPECT_EQ(c.logprob->top[1].first, 3);
  EXPECT_NEAR(c.logprob->top[1].second, 2 - std::log(total), 1e-6);
}

// P6, in words of the mask that allow all, none and some, the last of them short.
TEST(Sampler, WhatTheMaskForbidsIsNeverChosenAndTakesNoProbability) {
  std::vector<float> logits(100, 1.0f);
  logits[40] = 9;
  Asked a;
  a.params.top_logprobs = 2;
  a.allowed = {0xFFFFFFFFu, 0, 1u << 3, 1u << 2};  // 0..31, 67, 98
  logits[98] = 2;
  const double total = 33 * std::exp(1.0) + std::exp(2.0);
  const Choice greedy = choose(logits, a);
  EXPECT_EQ(greedy.id, 98);
  EXPECT_NEAR(greedy.logprob->logprob, 2 - std::log(total), 1e-6);
  a.params.logprobs_mode = LogprobsMode::raw;
  const Choice raw = choose(logits, a);
  EXPECT_EQ(raw.id, 98);
  EXPECT_EQ(raw.logprob->top[0].first, 40);
  EXPECT_NEAR(raw.logprob->logprob, 2 - std::log(98 * std::exp(1.0) + std::exp(2.0) + std::exp(9.0)), 1e-6);
  a.params = {};
  a.params.temperature = 3;
  Sampler sampler(100, 1000, {});
  for (std::int64_t seed = 0; seed < 200; ++seed) {
    std::vector<float> z = logits;
    const std::vector<ChoosingRow> rows = {a.row(seed)};
    std::vector<Choice> out(1);
    sampler.choose(cpu(), {z.data(), 1, 100, 100}, rows, out);
    EXPECT_TRUE(out[0].id < 32 || out[0].id == 67 || out[0].id == 98) << out[0].id;
  }
}

// After the end mask: a mask that allows only an end which may not come yet leaves nothing.
TEST(Sampler, AMaskAndTheEndMaskTogetherMayLeaveNothing) {
  Asked a;
  a.end_tokens = {2};
  a.allowed = {1u << 2};
  EXPECT_EQ(choose({1, 5, 5, 2}, a).id, 2);
  a.params.min_tokens = 1;
  EXPECT_EQ(choose({1, 5, 5, 2}, a).failure->code, "grammar_dead_end");
}

TEST(Sampler, RawLogProbabilitiesAreThoseBeforeTheProcessorsButForPaddedIds) {
  Asked a;
  a.params.logprobs = true;
  a.params.top_logprobs = 1;
  a.params.logprobs_mode = LogprobsMode::raw;
  a.params.logit_bias = {{0, kNever}};
  const Choice c = choose({9, 1, 3, 50}, a, 3);
  EXPECT_EQ(c.id, 2);
  const double total = std::exp(9.0) + std::exp(1.0) + std::exp(3.0);
  EXPECT_NEAR(c.logprob->logprob, 3 - std::log(total), 1e-6);
  EXPECT_EQ(c.logprob->top[0].first, 0);
}

TEST(Sampler, WhatARowGetsDoesNotDependOnItsNeighbours) {
  std::vector<float> logits(5 * 40);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 61) / 9;
  Asked plain, hot, raw, filtered, nothing;
  hot.params.temperature = 1.3;
  raw.params.temperature = 0.7;
  raw.params.logprobs = true;
  raw.params.logprobs_mode = LogprobsMode::raw;
  filtered.params.temperature = 1;
  filtered.params.top_p = 0.8;
  filtered.params.top_k = 7;
  nothing.params.logit_bias = {{3, 2.0f}};
  const std::vector<const Asked*> asked = {&plain, &raw, &hot, &filtered, &nothing};
  std::vector<ChoosingRow> rows;
  for (const Asked* a : asked) rows.push_back(a->row(static_cast<std::int64_t>(rows.size())));
  Sampler sampler(40, 40, {});
  auto together = logits;
  std::vector<Choice> out(5);
  sampler.choose(cpu(), {together.data(), 5, 40, 40}, rows, out);
  for (std::size_t i = 0; i < 5; ++i) {
    std::vector<float> alone(logits.begin() + static_cast<std::ptrdiff_t>(i * 40),
                             logits.begin() + static_cast<std::ptrdiff_t>(i * 40 + 40));
    std::vector<Choice> single(1);
    sampler.choose(cpu(), {alone.data(), 1, 40, 40}, {&rows[i], 1}, single);
    EXPECT_EQ(single[0].id, out[i].id);
    EXPECT_EQ(single[0].logprob.has_value(), out[i].logprob.has_value());
    if (single[0].logprob) {
      EXPECT_EQ(single[0].logprob->logprob, out[i].logprob->logprob);
    }
  }
}

}  // namespace
}  // namespace outrider
