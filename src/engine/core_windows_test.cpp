// Everything that a request may ask for inside windows of drafts (runtime.md section 5): what comes out is what comes
// out without drafts.
#include <gtest/gtest.h>

#include "base/log.h"
#include "engine/scripted_roll.h"
#include "engine/test_words.h"

namespace outrider {
namespace {

Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu_device(1);
  return *device;
}

constexpr std::int64_t kVocab = 8;
constexpr std::int32_t kEnd = 7;

// Right as a rule, for as many tokens as are wanted; wrong at random places.
class AnswerDrafter : public TextDrafter {
 public:
  AnswerDrafter(std::vector<std::int32_t> answer, std::uint64_t dice) : answer_(std::move(answer)), dice_(dice) {}
  std::int64_t propose(EngineRow& row, std::span<std::int32_t> out) override {
    for (std::size_t j = 0; j < out.size(); ++j) {
      const std::size_t at = static_cast<std::size_t>(row.generated()) + j;
      out[j] = at < answer_.size() && mix(++dice_) % 4 != 0 ? answer_[at] : static_cast<std::int32_t>(mix(dice_) % 8);
    }
    return std::ssize(out);
  }

 private:
  std::vector<std::int32_t> answer_;
  std::uint64_t dice_;
};

struct Rig {
  ScriptedModel model{kVocab};
  Core core;
  std::map<RequestId, Answer> answers;

  Rig(std::int64_t depth, std::vector<std::int32_t> drafts, std::uint64_t dice)
      : core({&model,
              &cpu(),
              &words(),
              std::make_unique<Sampler>(kVocab, kVocab, std::vector<std::int32_t>{}),
              {kEnd},
              std::make_unique<AnswerDrafter>(std::move(drafts), dice)},
             drafting(core_limits(), depth)) {
    set_log(LogLevel::off, LogFormat::text);
  }
  bool step() {
    return core.step([&](const Event& event) { collect(answers, event); });
  }
  void run() {
    while (step()) {
    }
  }
};

Answer answer(const Request& request, std::int64_t depth, std::vector<std::int32_t> drafts, std::uint64_t dice) {
  Rig rig(depth, std::move(drafts), dice);
  const RequestId id = rig.core.submit(request).value();
  rig.run();
  return rig.answers[id];
}

struct Case {
  const char* name;
  std::function<void(Request&)> ask;
};

const Case kCases[] = {
    {"nothing", [](Request&) {}},
    {"a budget of one", [](Request& r) { r.max_tokens = 1; }},
    {"a budget of two", [](Request& r) { r.max_tokens = 2; }},
    {"repetition penalty", [](Request& r) { r.sampling.repetition_penalty = 1.7; }},
    {"repetition of the answer",
     [](Request& r) {
       r.sampling.repetition_penalty = 3;
       r.sampling.repetition_context_size = 3;
       r.sampling.repetition_scope = PenaltyScope::generated;
     }},
    {"presence penalty", [](Request& r) { r.sampling.presence_penalty = 4; }},
    {"frequency penalty", [](Request& r) { r.sampling.frequency_penalty = 0.7; }},
    {"frequency of a window",
     [](Request& r) {
       r.sampling.frequency_penalty = 2;
       r.sampling.frequency_context_size = 4;
     }},
    {"bias", [](Request& r) { r.sampling.logit_bias = {{2, 5.0f}, {0, -std::numeric_limits<float>::infinity()}}; }},
    {"an early end forbidden", [](Request& r) { r.sampling.min_tokens = 9; }},
    {"the end ignored", [](Request& r) { r.sampling.ignore_eos = true; }},
    {"an end of its own", [](Request& r) { r.stop_token_ids = {4}; }},
    {"a stop string", [](Request& r) { r.stop = {"ca"}; }},
    {"stop strings inside tokens and over several", [](Request& r) { r.stop = {"bb", "cab", "aaab"}; }},
    {"a stop string that is shown",
     [](Request& r) {
       r.stop = {"ba"};
       r.include_stop = true;
     }},
    {"a stop string not before",
     [](Request& r) {
       r.stop = {"a", "c"};
       r.sampling.min_tokens = 7;
     }},
    {"log-probabilities", [](Request& r) { r.sampling.top_logprobs = 3; }},
    {"raw log-probabilities",
     [](Request& r) {
       r.sampling.top_logprobs = 2;
       r.sampling.logprobs_mode = LogprobsMode::raw;
       r.sampling.presence_penalty = 2;
     }},
    {"masks",
     [](Request& r) {
       r.rolled = std::make_shared<ScriptedRoll>(RollScript{.vocab = kVocab, .salt = 8, .forces = 2});
     }},
    {"masks, penalties and a stop string",
     [](Request& r) {
       r.rolled = std::make_shared<ScriptedRoll>(RollScript{.vocab = kVocab, .salt = 4, .forces = 2});
       r.sampling.frequency_penalty = 0.5;
       r.stop = {"cb"};
     }},
    {"masks until they are complete",
     [](Request& r) {
       r.rolled =
           std::make_shared<ScriptedRoll>(RollScript{.vocab = kVocab, .salt = 5, .forces = 2, .completes_at = 12});
     }},
};

class Windows : public testing::TestWithParam<std::size_t> {};

TEST_P(Windows, GiveWhatComesWithoutDrafts) {
  const Case& asked = kCases[GetParam()];
  std::int64_t accepted = 0, rejected = 0;
  for (std::uint64_t salt = 0; salt < 12; ++salt) {
    Request request;
    for (std::uint64_t i = 0; i < 3 + salt; ++i)
      request.ids.push_back(static_cast<std::int32_t>(mix(salt * 100 + i) % 7));
    request.max_tokens = 30;
    request.sampling.seed = static_cast<std::int64_t>(salt);
    if (salt % 2 == 1) request.sampling.temperature = 1.1;
    if (salt % 4 == 3) request.sampling.top_p = 0.9;
    asked.ask(request);
    const Answer plain = answer(request, 0, {}, 0);
    for (const std::int64_t depth : {1, 2, 4}) {
      const Answer drafted = answer(request, depth, plain.ids, salt * 10);
      const auto what = fmt::format("{}, salt {}, depth {}", asked.name, salt, depth);
      EXPECT_EQ(drafted.ids, plain.ids) << what;
      EXPECT_EQ(drafted.text, plain.text) << what;
      EXPECT_EQ(drafted.last.finish, plain.last.finish) << what;
      EXPECT_EQ(drafted.last.stop_match, plain.last.stop_match) << what;
      EXPECT_EQ(drafted.last.usage.completion_tokens, plain.last.usage.completion_tokens) << what;
      EXPECT_EQ(drafted.last.error.has_value(), plain.last.error.has_value()) << what;
      ASSERT_EQ(drafted.logprobs.size(), plain.logprobs.size()) << what;
      for (std::size_t i = 0; i < plain.logprobs.size(); ++i) {
        EXPECT_EQ(drafted.logprobs[i].logprob, plain.logprobs[i].logprob) << what;
        EXPECT_EQ(drafted.logprobs[i].top, plain.logprobs[i].top) << what;
      }
      accepted += drafted.last.timings.draft_n_accepted;
      rejected += drafted.last.timings.draft_n - drafted.last.timings.draft_n_accepted;
    }
  }
  if (asked.name == std::string_view("a budget of one") || asked.name == std::string_view("a budget of two")) return;
  EXPECT_GT(accepted, 10) << asked.name;
  EXPECT_GT(rejected, 5) << asked.name;
}

INSTANTIATE_TEST_SUITE_P(Cases, Windows, testing::Range(std::size_t{0}, std::size(kCases)));

// A cancel between any two steps leaves what was emitted, a prefix of the whole.
TEST(Windows, ACancelKeepsWhatWasEmitted) {
  Request request;
  request.ids = {1, 2, 3};
  request.max_tokens = 40;
  request.sampling.ignore_eos = true;
  const Answer whole = answer(request, 0, {}, 0);
  for (int after = 0; after < 12; ++after) {
    Rig rig(3, whole.ids, 5);
    const RequestId id = rig.core.submit(request).value();
    for (int i = 0; i < after; ++i) rig.step();
    rig.core.cancel(id);
    rig.run();
    const Answer& got = rig.answers[id];
    EXPECT_EQ(got.last.finish, FinishReason::cancelled);
    EXPECT_EQ(got.last.usage.completion_tokens, std::ssize(got.ids));
    ASSERT_LE(got.ids.size(), whole.ids.size());
    EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), whole.ids.begin())) << after;
    EXPECT_EQ(rig.core.state_pool().kv().used_blocks(), 0);
  }
}

}  // namespace
}  // namespace outrider
