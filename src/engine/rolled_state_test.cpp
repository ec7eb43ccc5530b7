// The rolled state of requests in windows of drafts (runtime.md section 5, serving.md sections 2.1 and 3).
#include "engine/rolled_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "engine/scripted_roll.h"

namespace outrider {
namespace {

constexpr std::int64_t kVocab = 61;

Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu_device(1);
  return *device;
}

Request request_of(std::int64_t max_tokens, std::uint64_t salt, std::optional<RollScript> script = RollScript{}) {
  Request request;
  for (std::uint64_t i = 0; i < 9 + salt % 5; ++i)
    request.ids.push_back(static_cast<std::int32_t>(mix(salt * 1000 + i) % kVocab));
  request.max_tokens = max_tokens;
  if (!script) return request;
  script->salt = salt;
  request.rolled = std::make_shared<ScriptedRoll>(*script);
  return request;
}

class FunctionDrafter : public TextDrafter {
 public:
  using Propose = std::function<std::int64_t(EngineRow&, std::span<std::int32_t>)>;
  explicit FunctionDrafter(Propose propose) : propose_(std::move(propose)) {}
  std::int64_t propose(EngineRow& row, std::span<std::int32_t> out) override { return propose_(row, out); }

 private:
  Propose propose_;
};

struct Rig {
  ScriptedModel model;
  Core core;
  std::map<RequestId, Answer> answers;
  int steps = 0;

  explicit Rig(std::int64_t depth, FunctionDrafter::Propose drafter = nullptr)
      : core({&model,
              &cpu(),
              nullptr,
              std::make_unique<BitsChooser>(),
              {},
              drafter ? std::make_unique<FunctionDrafter>(std::move(drafter)) : nullptr},
             limits(depth)) {
    set_log(LogLevel::off, LogFormat::text);
  }
  static CoreLimits limits(std::int64_t depth) {
    CoreLimits limits = drafting(core_limits(), depth);
    limits.speculation.drafts_text = false;
    return limits;
  }
  RequestId submit(Request request) { return core.submit(std::move(request)).value(); }
  void run() {
    for (bool more = true; more; ++steps) more = core.step([&](const Event& event) { collect(answers, event); });
  }
  Answer answer(Request request) {
    const RequestId id = submit(std::move(request));
    run();
    return answers[id];
  }
};

std::vector<std::int32_t> solo(const Request& request) { return Rig(0).answer(request).ids; }

// Every answer token obeys the mask behind those before it.
bool obeys(const Request& request, const std::vector<std::int32_t>& ids) {
  RowRoll roll(request.rolled->clone());
  return std::all_of(ids.begin(), ids.end(), [&](std::int32_t id) { return roll.advance(id); });
}

TEST(RolledState, MasksEveryToken) {
  for (std::uint64_t salt = 0; salt < 8; ++salt) {
    const Request request = request_of(40, salt);
    const std::vector<std::int32_t> ids = solo(request);
    ASSERT_EQ(ids.size(), 40u);
    EXPECT_TRUE(obeys(request, ids)) << salt;
    EXPECT_FALSE(obeys(request, solo(request_of(40, salt, std::nullopt)))) << salt;
  }
}

// Drafts right and wrong, allowed and forbidden, beside rows without masks.
TEST(RolledState, WindowsOfDraftsGiveTheSameTokensInFewerSteps) {
  std::vector<Request> requests;
  std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> answers;
  for (std::uint64_t salt = 0; salt < 8; ++salt) {
    requests.push_back(request_of(60, salt, salt == 3 ? std::nullopt : std::optional(RollScript{.forces = salt % 4})));
    answers[requests.back().ids] = solo(requests.back());
  }
  for (const std::int64_t depth : {1, 4}) {
    std::uint64_t dice = 7;
    Rig rig(depth, [&](EngineRow& row, std::span<std::int32_t> out) {
      const auto& answer = answers.at(row.request.ids);
      for (std::size_t j = 0; j < out.size(); ++j) {
        out[j] = answer[static_cast<std::size_t>(row.generated()) + j];
        if (mix(++dice) % 4 == 0) out[j] = static_cast<std::int32_t>(mix(dice) % kVocab);
      }
      return std::ssize(out);
    });
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(rig.submit(request));
    rig.run();
    EXPECT_LT(rig.steps, depth == 1 ? 50 : 35);
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(rig.answers[ids[i]].ids, answers[requests[i].ids]) << i;
  }
}

TEST(RolledState, ForcedTokensAreProposalsThatStand) {
  const Request request = request_of(80, 5, RollScript{.forces = 6});
  Rig rig(4);
  const Answer answer = rig.answer(request);
  EXPECT_EQ(answer.ids, solo(request));
  EXPECT_GT(answer.last.timings.draft_n, 30);
  EXPECT_EQ(answer.last.timings.draft_n_accepted, answer.last.timings.draft_n);
  EXPECT_EQ(rig.steps, 80 - answer.last.timings.draft_n);
}

TEST(RolledState, CutsDraftsThatItForbidsBeforeTheyAreVerified) {
  const Request request = request_of(40, 2, RollScript{.forces = 0});
  const std::vector<std::int32_t> expected = solo(request);
  std::size_t longest = 0, cut = 0;
  const auto forbidden_behind = [&](EngineRow& row) {
    const std::unique_ptr<RolledState> roll = request.rolled->clone();
    for (std::int64_t t = 0; t <= row.generated(); ++t) roll->advance(expected[static_cast<std::size_t>(t)]);
    for (std::int32_t id = 0; id < kVocab; ++id) {
      if (!roll->advance(id)) return id;
      roll->roll_back(1);
    }
    return std::int32_t{-1};
  };
  Rig rig(4, [&](EngineRow& row, std::span<std::int32_t> out) {
    if (out.size() < 3) return std::int64_t{0};
    out[0] = expected[static_cast<std::size_t>(row.generated())];
    out[1] = forbidden_behind(row);
    out[2] = 0;
    if (out[1] < 0) return std::int64_t{0};
    ++cut;
    return std::int64_t{3};
  });
  rig.model.before_forward = [&](const RaggedBatch& batch) {
    if (batch.rows[0].position > 0) longest = std::max(longest, batch.tokens.size());
  };
  const Answer answer = rig.answer(request);
  EXPECT_EQ(answer.ids, expected);
  EXPECT_GT(cut, 5u);
  EXPECT_EQ(longest, 2u);  // the pending token and the draft before the forbidden one
  EXPECT_EQ(answer.last.timings.draft_n, answer.last.timings.draft_n_accepted);
}

TEST(RolledState, ADeadEndFailsItsRequestAloneWithTheTokensBeforeIt) {
  Request dead = request_of(40, 6, RollScript{.dead_at = 11});
  const std::vector<std::int32_t> free = solo(request_of(40, 6)), neighbour = solo(request_of(40, 7));
  for (const std::int64_t depth : {0, 4}) {
    Rig rig(depth);
    const RequestId d = rig.submit(dead), n = rig.submit(request_of(40, 7));
    rig.run();
    ASSERT_TRUE(rig.answers[d].last.error);
    EXPECT_EQ(rig.answers[d].last.error->code, "grammar_dead_end");
    EXPECT_EQ(rig.answers[d].last.error->http_status, 500);
    EXPECT_EQ(rig.answers[d].ids, std::vector<std::int32_t>(free.begin(), free.begin() + 11)) << depth;
    EXPECT_EQ(rig.answers[n].ids, neighbour);
  }
}

TEST(RolledState, ACompleteAnswerEndsInsideAWindowAndBelowMinTokens) {
  for (std::uint64_t salt = 0; salt < 6; ++salt) {
    Request request = request_of(40, salt, RollScript{.forces = 6});
    const std::vector<std::int32_t> free = solo(request);
    request = request_of(40, salt, RollScript{.forces = 6, .completes_at = 17});
    request.sampling.min_tokens = 30;
    for (const std::int64_t depth : {0, 4}) {
      const Answer answer = Rig(depth).answer(request);
      EXPECT_EQ(answer.ids, std::vector<std::int32_t>(free.begin(), free.begin() + 17)) << depth;
      EXPECT_EQ(answer.last.finish, FinishReason::stop);
      EXPECT_FALSE(answer.last.error);
    }
  }
}

TEST(RolledState, AMaskThatThrowsEndsItsRequestAlone) {
  for (const std::int64_t depth : {0, 4}) {
    Rig rig(depth);
    const RequestId bad = rig.submit(request_of(40, 6, RollScript{.throws_at = 11}));
    const RequestId n = rig.submit(request_of(40, 7));
    rig.run();
    ASSERT_TRUE(rig.answers[bad].last.error);
    EXPECT_EQ(rig.answers[bad].last.error->code, "engine_step_failed");
    EXPECT_THAT(rig.answers[bad].last.error->message, testing::HasSubstr("scripted failure of a mask"));
    EXPECT_EQ(rig.answers[n].ids, solo(request_of(40, 7)));
  }
}

TEST(RolledState, ARequestIsSubmittedAgainFromItsFirstToken) {
  const Request request = request_of(20, 9);
  Rig rig(4);
  const RequestId a = rig.submit(request), b = rig.submit(request);
  rig.run();
  EXPECT_EQ(rig.answers[a].ids, rig.answers[b].ids);
  EXPECT_EQ(rig.answer(request).ids, rig.answers[a].ids);
}

// Every fallible point of a run, those of the rolled state among them.
TEST(RolledState, AFailureAnywhereBesideMasksLosesNothing) {
  const Request first = request_of(8, 1), second = request_of(8, 2, RollScript{.forces = 6});
  const std::vector<std::int32_t> first_alone = solo(first), second_alone = solo(second);
  for (std::int64_t nth = 1;; nth += 3) {
    Rig rig(3);
    const RequestId a = rig.submit(first), b = rig.submit(second);
    const bool fired = run_failing_once(rig.core, nth, rig.answers);
    int failed = 0;
    for (const auto& [id, expected] : {std::pair(a, &first_alone), std::pair(b, &second_alone)}) {
      const Answer& answer = rig.answers[id];
      ASSERT_TRUE(answer.finished) << "at point " << nth;
      failed += answer.last.error.has_value();
      if (!answer.last.error) EXPECT_EQ(answer.ids, *expected) << "at point " << nth;
    }
    EXPECT_LE(failed, 1) << "at point " << nth;
    if (!fired) break;
  }
}

}  // namespace
}  // namespace outrider
