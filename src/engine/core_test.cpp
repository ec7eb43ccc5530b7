#include "engine/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/counted_new.h"
#include "base/log.h"
#include "engine/default_sampling.h"
#include "engine/sampler.h"
#include "engine/scripted_model.h"

namespace outrider {
namespace {

Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu_device(1);
  return *device;
}

std::vector<std::int32_t> prompt_of(std::int64_t tokens, std::uint64_t salt) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(mix(salt * 1000 + i) % 61);
  return ids;
}

Request request_of(std::int64_t prompt_tokens, std::int64_t max_tokens, std::uint64_t salt) {
  Request request;
  request.ids = prompt_of(prompt_tokens, salt);
  request.max_tokens = max_tokens;
  return request;
}

struct Rig {
  ScriptedModel model;
  Core core;
  std::map<RequestId, Answer> answers;

  explicit Rig(const CoreLimits& limits = core_limits(),
               std::unique_ptr<TokenChooser> chooser = std::make_unique<BitsChooser>(),
               std::vector<std::int32_t> end_tokens = {})
      : core({&model, &cpu(), nullptr, std::move(chooser), std::move(end_tokens)}, limits) {
    set_log(LogLevel::off, LogFormat::text);
  }
  RequestId submit(Request request) {
    auto id = core.submit(std::move(request));
    EXPECT_TRUE(id.has_value()) << id.error().message;
    return id.value_or(0);
  }
  bool step() {
    return core.step([&](const Event& event) { collect(answers, event); });
  }
  void run() {
    for (int steps = 0; step(); ++steps) ASSERT_LT(steps, 100000);
    EXPECT_EQ(core.state_pool().kv().used_blocks(), 0);
  }
  Answer answer(Request request) {
    const RequestId id = submit(std::move(request));
    run();
    return answers[id];
  }
};

std::vector<std::int32_t> solo(std::int64_t prompt_tokens, std::int64_t max_tokens, std::uint64_t salt) {
  Rig rig;
  return rig.answer(request_of(prompt_tokens, max_tokens, salt)).ids;
}

TEST(Core, AnswersWithTheTokensOfTheModel) {
  Rig rig;
  const Answer answer = rig.answer(request_of(5, 7, 1));
  EXPECT_EQ(answer.ids.size(), 7u);
  EXPECT_EQ(answer.last.finish, FinishReason::length);
  EXPECT_EQ(answer.last.usage.prompt_tokens, 5);
  EXPECT_EQ(answer.last.usage.completion_tokens, 7);
  EXPECT_EQ(answer.last.timings.predicted_n, 7);
  EXPECT_EQ(answer.last.timings.prompt_n, 5);
}

TEST(Core, GivesTheSameTokensForEveryBatchSizeWithRaggedNeighbours) {
  for (const int batch : {1, 2, 3, 8, 17}) {
    Rig rig(core_limits(17, 100));
    std::vector<RequestId> ids;
    for (int i = 0; i < batch; ++i) ids.push_back(rig.submit(request_of(3 + 37 * i % 150, 5 + i % 9, 10 + i)));
    rig.run();
    for (int i = 0; i < batch; ++i)
      EXPECT_EQ(rig.answers[ids[i]].ids, solo(3 + 37 * i % 150, 5 + i % 9, 10 + i)) << "row " << i << " of " << batch;
  }
}

TEST(Core, GivesTheSameTokensForEveryPromptChunk) {
  const std::vector<std::int32_t> whole = solo(700, 12, 3);
  for (const std::int64_t chunk : {1, 7, 64, 512}) {
    Rig rig(core_limits(4, chunk));
    const RequestId other = rig.submit(request_of(90, 30, 4));
    EXPECT_EQ(rig.answer(request_of(700, 12, 3)).ids, whole) << "chunk " << chunk;
    EXPECT_EQ(rig.answers[other].ids, solo(90, 30, 4));
  }
}

TEST(Core, StopsAtAnEndTokenWhichIsCountedAndHasNoText) {
  const std::vector<std::int32_t> free = solo(5, 20, 1);
  Rig rig(core_limits(), std::make_unique<BitsChooser>(), {free[4]});
  const Answer answer = rig.answer(request_of(5, 20, 1));
  const auto first = std::find(free.begin(), free.end(), free[4]) - free.begin();
  EXPECT_EQ(answer.ids, std::vector<std::int32_t>(free.begin(), free.begin() + first + 1));
  EXPECT_EQ(answer.last.finish, FinishReason::stop);
  EXPECT_EQ(answer.last.stop_match, "");
}

TEST(Core, MaxTokensZeroEvaluatesThePromptOnly) {
  Rig rig;
  const Answer answer = rig.answer(request_of(130, 0, 1));
  EXPECT_TRUE(answer.ids.empty());
  EXPECT_EQ(answer.last.finish, FinishReason::length);
}

TEST(Core, ACancelledNeighbourChangesNothing) {
  Rig rig(core_limits(4, 32));
  const RequestId kept = rig.submit(request_of(100, 20, 5));
  const RequestId gone = rig.submit(request_of(100, 20, 6));
  const RequestId queued = rig.submit(request_of(10, 20, 7));
  rig.step();
  rig.core.cancel(gone);
  rig.core.cancel(queued);
  rig.core.cancel(12345);
  rig.step();
  EXPECT_TRUE(rig.answers[gone].finished);
  EXPECT_EQ(rig.answers[gone].last.finish, FinishReason::cancelled);
  rig.run();
  EXPECT_EQ(rig.answers[kept].ids, solo(100, 20, 5));
  EXPECT_EQ(rig.answers[queued].last.finish, FinishReason::cancelled);
}

TEST(Core, AFaultyRowFailsAloneAndNothingOfItsStepIsCommitted) {
  Rig rig;
  rig.model.fault_token = 7;
  Request bad = request_of(20, 10, 9), good = request_of(20, 1, 8);
  std::replace(good.ids.begin(), good.ids.end(), 7, 8);
  bad.ids[19] = 7;
  const RequestId b = rig.submit(bad), g = rig.submit(good);
  rig.run();
  EXPECT_EQ(rig.answers[b].last.finish, FinishReason::failed);
  EXPECT_EQ(rig.answers[b].last.error->code, "numeric_error");
  EXPECT_TRUE(rig.answers[b].ids.empty());
  Rig alone;
  EXPECT_EQ(rig.answers[g].ids, alone.answer(good).ids);
  EXPECT_FALSE(rig.answers[g].last.error);
}

TEST(Core, AHeadFaultIsANumericError) {
  Rig rig;
  rig.model.head_fault = true;
  const Answer answer = rig.answer(request_of(3, 3, 1));
  EXPECT_EQ(answer.last.error->code, "numeric_error");
}

// A legal request whose arithmetic overflows ends with an error of its own; from a request or from the model's files.
TEST(Core, APenaltyThatOverflowsEndsOnlyTheRowThatAsksForIt) {
  const SamplingParams from_file =
      default_sampling({{"do_sample", true}, {"temperature", 1.0}, {"repetition_penalty", 1e-46}});
  SamplingParams from_request;
  from_request.repetition_penalty = 1e-46;
  for (const SamplingParams& params : {from_request, from_file}) {
    const auto sampler = [] { return std::make_unique<Sampler>(61, 61, std::vector<std::int32_t>{}); };
    Rig rig(core_limits(), sampler()), alone(core_limits(), sampler());
    Request bad = request_of(20, 10, 9);
    bad.sampling = params;
    const RequestId b = rig.submit(bad), g = rig.submit(request_of(20, 10, 8));
    rig.run();
    EXPECT_EQ(rig.answers[b].last.finish, FinishReason::failed);
    ASSERT_TRUE(rig.answers[b].last.error);
    EXPECT_EQ(rig.answers[b].last.error->code, "numeric_error");
    EXPECT_EQ(rig.answers[g].ids, alone.answer(request_of(20, 10, 8)).ids);
  }
}

TEST(Core, ARowForWhichNoTokenIsChosenFailsAlone) {
  class RefusesTheFirst : public BitsChooser {
    void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
      BitsChooser::choose(device, logits, rows, out);
      for (std::size_t i = 0; i < rows.size(); ++i)
        if (rows[i].prompt_tokens == 20) out[i].id = -1;
    }
  };
  Rig rig(core_limits(), std::make_unique<RefusesTheFirst>());
  const RequestId b = rig.submit(request_of(20, 10, 9)), g = rig.submit(request_of(21, 10, 8));
  rig.run();
  ASSERT_TRUE(rig.answers[b].last.error);
  EXPECT_EQ(rig.answers[b].last.error->code, "numeric_error");
  EXPECT_EQ(rig.answers[g].ids, solo(21, 10, 8));
}

// Scored, a NaN would otherwise be a perfect guess (+inf); raw logits are shown as they are.
TEST(Core, ScoringFailsOnANaNAndRawLogitsShowIt) {
  Rig rig;
  rig.model.nan_logit = 5;
  Request request = request_of(20, 0, 40);
  request.want = Want::prompt_logprobs;
  const RequestId scored = rig.submit(request);
  request.want = Want::prompt_logits;
  const RequestId shown = rig.submit(request);
  rig.run();
  ASSERT_TRUE(rig.answers[scored].last.error);
  EXPECT_EQ(rig.answers[scored].last.error->code, "numeric_error");
  EXPECT_TRUE(rig.answers[scored].prompt_logprobs.empty());
  EXPECT_FALSE(rig.answers[shown].last.error);
  ASSERT_EQ(rig.answers[shown].logits.size(), 20u * 61);
  EXPECT_TRUE(std::isnan(rig.answers[shown].logits[5]));
}

// A step that failed and ran again in halves stored its values once, as far as the cache is concerned.
TEST(Core, CountsClampsOfCommittedAttemptsOnly) {
  Rig rig;
  rig.model.clamps_per_token = 5;
  bool failed_once = false;
  rig.model.before_head = [&] {
    if (!failed_once) {
      failed_once = true;
      throw std::runtime_error("scripted failure");
    }
  };
  for (std::uint64_t i = 0; i < 4; ++i) rig.submit(request_of(10, 3, i));
  rig.run();
  EXPECT_TRUE(failed_once);
  EXPECT_EQ(rig.core.kv_clamps(), 5 * 4 * 12);  // 4 rows, 10 tokens of the prompt and 2 of the answer each
}

// serving.md 5.3 and 1.5: prompts take turns, cut at blocks of the absolute grid; a short one does not wait for a long
// one before it.
TEST(Core, AShortPromptIsAnsweredWhileALongOneBeforeItIsStillRead) {
  Rig rig(core_limits(8, 512));
  bool whole_blocks = true;
  rig.model.before_forward = [&](const RaggedBatch& batch) {
    for (const BatchRow& row : batch.rows) {
      const std::int64_t end = row.position + row.end - row.begin;
      const std::int64_t prompt = row.planned_tokens == 3004 ? 3000 : 100;
      if (end < prompt) whole_blocks &= end % kBlockKeys == 0;
    }
  };
  const RequestId long_one = rig.submit(request_of(3000, 4, 1)), short_one = rig.submit(request_of(100, 1, 2));
  rig.step();
  EXPECT_TRUE(rig.answers[short_one].finished);
  rig.run();
  EXPECT_TRUE(whole_blocks);
  EXPECT_EQ(rig.answers[long_one].ids, solo(3000, 4, 1));
  EXPECT_EQ(rig.answers[short_one].ids, solo(100, 1, 2));
}

#if defined(__x86_64__)
// numerics.md section 1: set at the start, CHECKed at step entry.
TEST(CoreDeath, AStepChecksTheFloatEnvironmentOfItsThread) {
  Rig rig;
  rig.submit(request_of(5, 7, 1));
  rig.step();
  EXPECT_DEATH(
      {
        _mm_setcsr(0x1F80 | 0x8000);
        rig.step();
      },
      "subnormals");
}
#endif

// serving.md 5.3: the step is retried in halves until the failing row is alone.
TEST(Core, AnExceptionEndsOnlyTheRowThatCausesIt) {
  for (const int culprit : {0, 3, 6}) {
    Rig rig(core_limits(8, 300));
    std::vector<RequestId> ids;
    for (int i = 0; i < 7; ++i) ids.push_back(rig.submit(request_of(11 + i, 9, 20 + i)));
    const std::vector<std::int32_t> mark = prompt_of(11 + culprit, 20 + culprit);
    rig.model.before_forward = [&](const RaggedBatch& batch) {
      for (const BatchRow& row : batch.rows)
        if (row.end - row.begin == 11 + culprit) throw std::runtime_error("scripted failure");
    };
    rig.run();
    for (int i = 0; i < 7; ++i) {
      const Answer& answer = rig.answers[ids[i]];
      if (i == culprit) {
        EXPECT_EQ(answer.last.error->code, "engine_step_failed");
        EXPECT_THAT(answer.last.error->message, testing::HasSubstr("scripted failure"));
      } else {
        EXPECT_EQ(answer.ids, solo(11 + i, 9, 20 + i)) << i << " beside " << culprit;
      }
    }
  }
}

TEST(Core, AStepThatFailsForManyRowsButNotForEachGivesEverybodyTheSameTokens) {
  Rig rig;
  int steps = 0;
  const auto fail_together = [&](std::size_t rows) {
    if (rows > 1 && ++steps % 3 == 0) throw std::bad_alloc();
  };
  std::size_t rows = 0;
  rig.model.before_forward = [&](const RaggedBatch& batch) {
    rows = batch.rows.size();
    fail_together(rows);
  };
  rig.model.before_head = [&] { fail_together(rows); };
  const RequestId a = rig.submit(request_of(70, 30, 31)), b = rig.submit(request_of(5, 30, 32));
  const RequestId c = rig.submit(request_of(64, 25, 33));
  rig.run();
  EXPECT_GT(steps, 20);
  EXPECT_EQ(rig.answers[a].ids, solo(70, 30, 31));
  EXPECT_EQ(rig.answers[b].ids, solo(5, 30, 32));
  EXPECT_EQ(rig.answers[c].ids, solo(64, 25, 33));
}

// runtime.md 1.6: an allocation fails somewhere in a step. Nothing is lost for anybody: a row either goes on with the
// tokens it would have had, or ends with an error of its own.
// Proposes one token over and over.
class OneTokenDrafter : public TextDrafter {
 public:
  explicit OneTokenDrafter(std::int32_t id) : id_(id) {}
  std::int64_t propose(EngineRow&, std::span<std::int32_t> out) override {
    std::fill(out.begin(), out.end(), id_);
    return std::ssize(out);
  }

 private:
  std::int32_t id_;
};

// A draft that does not stand has not happened, whatever its values are; one that stands ends the row where it would
// have ended without drafts.
TEST(Core, AFaultInAWindowEndsTheRowOnlyIfTheRowGetsThere) {
  const Request request = request_of(30, 12, 81);
  const std::vector<std::int32_t> alone = solo(30, 12, 81);
  const auto answer = [&](std::int32_t fault, std::int64_t depth) {
    const CoreLimits limits = drafting(core_limits(), depth);
    ScriptedModel model;
    model.fault_token = fault;
    Core core({&model, &cpu(), nullptr, std::make_unique<BitsChooser>(), {}, std::make_unique<OneTokenDrafter>(fault)},
              limits);
    std::map<RequestId, Answer> answers;
    const RequestId id = core.submit(request).value();
    while (core.step([&](const Event& event) { collect(answers, event); })) {
    }
    return answers[id];
  };
  std::int32_t never = 0;
  while (std::count(alone.begin(), alone.end(), never) + std::count(request.ids.begin(), request.ids.end(), never) > 0)
    ++never;
  EXPECT_EQ(answer(never, 4).ids, alone);
  EXPECT_FALSE(answer(never, 4).last.error);
  const auto chosen = std::find_if(alone.begin() + 2, alone.end() - 1, [&](std::int32_t id) {
    return std::count(request.ids.begin(), request.ids.end(), id) == 0;
  });
  ASSERT_NE(chosen, alone.end() - 1);
  for (const std::int64_t depth : {0, 1, 4}) {
    const Answer faulted = answer(*chosen, depth);
    ASSERT_TRUE(faulted.last.error) << "depth " << depth;
    EXPECT_EQ(faulted.last.error->code, "numeric_error");
    const auto end = std::find(alone.begin(), alone.end(), *chosen) + 1;
    EXPECT_EQ(faulted.ids, std::vector<std::int32_t>(alone.begin(), end)) << "depth " << depth;
  }
}

TEST(Core, CountsNoClampsOfDraftsThatDoNotStand) {
  const auto clamps = [](std::int64_t depth) {
    const CoreLimits limits = drafting(core_limits(), depth);
    ScriptedModel model;
    model.clamps_per_token = 3;
    const std::int32_t often = solo(20, 30, 82)[5];  // right at least once, wrong elsewhere
    Core core({&model, &cpu(), nullptr, std::make_unique<BitsChooser>(), {}, std::make_unique<OneTokenDrafter>(often)},
              limits);
    EXPECT_TRUE(core.submit(request_of(20, 30, 82)));
    std::map<RequestId, Answer> answers;
    while (core.step([&](const Event& event) { collect(answers, event); })) {
    }
    const Timings& timings = answers.begin()->second.last.timings;
    if (depth > 0) EXPECT_TRUE(timings.draft_n_accepted > 0 && timings.draft_n_accepted < timings.draft_n);
    return core.kv_clamps();
  };
  EXPECT_EQ(clamps(0), 3 * (20 + 29));
  EXPECT_EQ(clamps(4), clamps(0));
}

TEST(Core, AnAllocationThatFailsAnywhereInAStepLosesNothing) {
  const std::vector<std::int32_t> a_alone = solo(70, 6, 71), b_alone = solo(9, 4, 72);
  int failed_points = 0;
  for (std::int64_t nth = 1;; ++nth) {
    Rig rig(core_limits(3, 40));
    Request scored = request_of(50, 0, 73);
    scored.want = Want::prompt_logprobs;
    const RequestId a = rig.submit(request_of(70, 6, 71)), b = rig.submit(request_of(9, 4, 72)), s = rig.submit(scored);
    rig.core.cancel(rig.submit(request_of(9, 4, 74)));
    const bool fired = run_failing_once(rig.core, nth, rig.answers);
    EXPECT_EQ(rig.core.state_pool().kv().used_blocks(), 0) << "at point " << nth;
    ASSERT_EQ(rig.answers.size(), 4u);
    int failed_rows = 0;
    for (const auto& [id, answer] : rig.answers) {
      EXPECT_TRUE(answer.finished) << "request " << id << " at point " << nth;
      failed_rows += answer.last.error.has_value();
    }
    EXPECT_LE(failed_rows, 1) << "at point " << nth;
    if (!rig.answers[a].last.error) {
      EXPECT_EQ(rig.answers[a].ids, a_alone) << "at point " << nth;
    }
    if (!rig.answers[b].last.error) {
      EXPECT_EQ(rig.answers[b].ids, b_alone) << "at point " << nth;
    }
    if (!rig.answers[s].last.error) {
      EXPECT_EQ(rig.answers[s].prompt_logprobs.size(), 49u) << "at point " << nth;
    }
    if (!fired) break;
    ++failed_points;
  }
  EXPECT_GT(failed_points, kHeapIsCounted ? 100 : 10);  // without it only AlignedBuffers fail
}

TEST(Core, ScoresThePromptInSlicesOfTheHead) {
  CoreLimits limits = core_limits(4, 50);
  limits.head_rows = 7;
  Rig rig(limits);
  Request request = request_of(130, 5, 40);
  request.want = Want::prompt_logits;
  const RequestId logits = rig.submit(request);
  request.want = Want::prompt_logprobs;
  const RequestId logprobs = rig.submit(request);
  const RequestId neighbour = rig.submit(request_of(20, 20, 41));
  rig.run();
  const Answer& scored = rig.answers[logprobs];
  const Answer& full = rig.answers[logits];
  ASSERT_EQ(scored.prompt_logprobs.size(), 129u);
  ASSERT_EQ(full.logits.size(), 130u * 61);
  ASSERT_EQ(full.hidden.size(), 130u * 4);
  EXPECT_EQ(scored.last.finish, FinishReason::length);
  for (std::size_t i = 0; i < 129; ++i) {
    double sum = 0;
    for (std::size_t v = 0; v < 61; ++v) sum += std::exp(static_cast<double>(full.logits[i * 61 + v]));
    const double expected = full.logits[i * 61 + static_cast<std::size_t>(request.ids[i + 1])] - std::log(sum);
    EXPECT_NEAR(scored.prompt_logprobs[i], expected, 1e-5);
  }
  EXPECT_EQ(rig.answers[neighbour].ids, solo(20, 20, 41));
}

TEST(Core, AConsumerThatThrowsLosesNoOtherEvent) {
  Rig rig;
  const RequestId a = rig.submit(request_of(5, 4, 50)), b = rig.submit(request_of(5, 4, 51));
  bool thrown = false;
  const auto deliver = [&](const Event& event) {
    if (!thrown && event.request == a) {
      thrown = true;
      throw std::runtime_error("reader gone");
    }
    collect(rig.answers, event);
  };
  EXPECT_THROW(rig.core.step(deliver), std::runtime_error);
  while (rig.core.step(deliver)) {
  }
  EXPECT_EQ(rig.answers[b].ids, solo(5, 4, 51));
  EXPECT_EQ(rig.answers[a].ids.size(), 3u);
}

TEST(Core, AdmitsByMemoryAndRefusesWhatCanNeverFit) {
  Rig rig(core_limits(8, 512, 4));  // 4 blocks: 255 tokens and the pending one
  EXPECT_FALSE(rig.core.submit(request_of(200, 56, 1)).has_value());
  const Refusal refusal = rig.core.submit(request_of(200, 56, 1)).error();
  EXPECT_EQ(refusal.code, "memory_contract");
  EXPECT_THAT(refusal.message, testing::HasSubstr("the largest max_tokens that passes is 55"));
  EXPECT_EQ(rig.core.submit(request_of(200, 4000, 1)).error().code, "context_length_exceeded");
  // Two of three blocks each: the second waits for the first.
  const RequestId a = rig.submit(request_of(130, 20, 60)), b = rig.submit(request_of(130, 20, 61));
  rig.step();
  EXPECT_FALSE(rig.answers[a].ids.empty());
  EXPECT_TRUE(rig.answers[b].ids.empty());
  rig.run();
  EXPECT_EQ(rig.answers[a].ids, solo(130, 20, 60));
  EXPECT_EQ(rig.answers[b].ids, solo(130, 20, 61));
  EXPECT_GT(rig.answers[b].last.timings.queue_ms, 0);
}

}  // namespace
}  // namespace outrider
