// The byte contract of serving.md section 0 (B1 to B3) on real graphs: whatever runs beside a request, however its
// prompt is cut and on however many threads, its logits have the same bits. Rule `bits`: a token is the hash of its
// row's logit bytes, so that one changed bit changes everything after it.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "engine/sampler.h"
#include "engine/scripted_model.h"

namespace outrider {
namespace {

// Throws when a batch holds the marked token.
class FailingModel : public ForwardingModel {
 public:
  using ForwardingModel::ForwardingModel;
  Tensor forward(const Step& step, const RaggedBatch& batch) override {
    const Tensor hidden = ForwardingModel::forward(step, batch);
    const bool marked = std::find(batch.tokens.begin(), batch.tokens.end(), poison) != batch.tokens.end();
    if (marked) throw std::runtime_error("scripted failure after the forward");
    return hidden;
  }

  std::int32_t poison = -1;
};

constexpr std::int32_t kPoison = 96;  // prompts and answers stay below it where a test uses it

// One of the small golden models, on a device of its own.
struct Graph {
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
  Graph(const std::string& name, int threads) : device(make_cpu_device(threads)) {
    const auto source = open_model_source(OUTRIDER_SOURCE_DIR "/oracles/goldens/" + name);
    model = load_model(*source, Precision::packed, *device);
  }
  std::unique_ptr<TokenChooser> sampler() const {
    const std::int64_t vocab = model->declaration().vocab;
    return std::make_unique<Sampler>(vocab, vocab, std::vector<std::int32_t>{});
  }
};

// The bits rule without the poison token.
class BitsBelowPoison : public TokenChooser {
 public:
  void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
    bits_.choose(device, logits, rows, out);
    for (Choice& choice : out) choice.id %= kPoison;
  }

 private:
  BitsChooser bits_;
};

// Proposes what the solo runs answered: as many tokens as it feels like, some of them wrong.
class ScriptedDrafter : public TextDrafter {
 public:
  explicit ScriptedDrafter(std::uint64_t salt = 0) : salt_(salt) {}
  void script(const Request& request, std::vector<std::int32_t> answer) { answers_[request.ids] = std::move(answer); }

  std::int64_t propose(EngineRow& row, std::span<std::int32_t> out) override {
    const auto found = answers_.find(row.request.ids);
    if (found == answers_.end()) return 0;
    const auto count = static_cast<std::int64_t>(next() % (out.size() + 1));
    for (std::int64_t j = 0; j < count; ++j) {
      const auto at = static_cast<std::size_t>(row.generated() + j);
      const std::int32_t right = at < found->second.size() ? found->second[at] : 0;
      out[static_cast<std::size_t>(j)] = next() % 4 == 0 ? (right + 1) % kPoison : right;
    }
    return count;
  }

 private:
  std::uint64_t next() { return mix(++salt_); }
  std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> answers_;
  std::uint64_t salt_;
};

struct Rig {
  FailingModel model;
  Core core;
  std::map<RequestId, Answer> answers;

  Rig(Graph& graph, const CoreLimits& limits,
      std::unique_ptr<TokenChooser> chooser = std::make_unique<BitsBelowPoison>(),
      std::unique_ptr<TextDrafter> drafter = nullptr)
      : model(*graph.model),
        core({&model, graph.device.get(), nullptr, std::move(chooser), {}, std::move(drafter)}, limits) {
    set_log(LogLevel::off, LogFormat::text);
  }
  RequestId submit(Request request) { return core.submit(std::move(request)).value(); }
  bool step() {
    return core.step([&](const Event& event) { collect(answers, event); });
  }
  void run() {
    while (step()) {
    }
  }
};

Request request_of(std::int64_t prompt_tokens, std::int64_t max_tokens, std::uint64_t salt) {
  Request request;
  for (std::int64_t i = 0; i < prompt_tokens; ++i)
    request.ids.push_back(static_cast<std::int32_t>(mix(salt * 4096 + static_cast<std::uint64_t>(i)) % kPoison));
  request.max_tokens = max_tokens;
  return request;
}

std::vector<std::int32_t> solo(Graph& graph, const Request& request) {
  Rig rig(graph, core_limits(1, 4096, 128, 2048));
  const RequestId id = rig.submit(request);
  rig.run();
  return rig.answers[id].ids;
}

class Identity : public testing::TestWithParam<const char*> {
 protected:
  Graph graph{GetParam(), 2};
};

TEST_P(Identity, BatchSizeAndRaggedNeighboursChangeNoBit) {
  std::vector<Request> requests;
  std::vector<std::vector<std::int32_t>> expected;
  for (int i = 0; i < 17; ++i) {
    requests.push_back(request_of(1 + 53 * i % 190, 6 + i % 5, static_cast<std::uint64_t>(i)));
    expected.push_back(solo(graph, requests.back()));
  }
  for (const std::size_t batch : {1u, 2u, 3u, 8u, 17u}) {
    Rig rig(graph, core_limits(17, 96, 256, 2048));
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < batch; ++i) ids.push_back(rig.submit(requests[i]));
    rig.run();
    for (std::size_t i = 0; i < batch; ++i) EXPECT_EQ(rig.answers[ids[i]].ids, expected[i]) << i << " of " << batch;
  }
}

TEST_P(Identity, PromptChunksChangeNoBit) {
  const Request request = request_of(600, 10, 77);
  const std::vector<std::int32_t> whole = solo(graph, request);
  for (const std::int64_t chunk : {1, 7, 64, 512}) {
    Rig rig(graph, core_limits(2, chunk, 64, 2048));
    const RequestId id = rig.submit(request);
    rig.run();
    EXPECT_EQ(rig.answers[id].ids, whole) << "chunk " << chunk;
  }
}

TEST_P(Identity, ThreadsChangeNoBit) {
  const Request request = request_of(300, 16, 78);
  const std::vector<std::int32_t> expected = solo(graph, request);
  for (const int threads : {1, 7}) {
    Graph other(GetParam(), threads);
    EXPECT_EQ(solo(other, request), expected) << threads << " threads";
  }
}

// serving.md 5.3: rows that ran beside a failing one get the same bytes as without it.
TEST_P(Identity, CancelledAndFailingNeighboursChangeNoBit) {
  const Request kept = request_of(150, 20, 80);
  const std::vector<std::int32_t> expected = solo(graph, kept);
  Rig rig(graph, core_limits(6, 64, 256, 2048));
  rig.model.poison = kPoison;
  const RequestId cancelled = rig.submit(request_of(100, 50, 81));
  const RequestId id = rig.submit(kept);
  Request failing = request_of(170, 20, 82);
  failing.ids[130] = kPoison;
  const RequestId failed = rig.submit(failing);
  for (int i = 0; i < 5; ++i) rig.step();
  rig.core.cancel(cancelled);
  rig.run();
  EXPECT_EQ(rig.answers[id].ids, expected);
  EXPECT_EQ(rig.answers[failed].last.error->code, "engine_step_failed");
  EXPECT_EQ(rig.answers[cancelled].last.finish, FinishReason::cancelled);
}

TEST_P(Identity, SeededAnswersAndTheirLogprobsDoNotDependOnTheBatch) {
  Request request = request_of(40, 24, 90);
  request.sampling.temperature = 0.9;
  request.sampling.top_p = 0.95;
  request.sampling.seed = -4711;
  request.sampling.logprobs = true;
  request.sampling.repetition_penalty = 1.1;
  const auto answer = [&](std::int64_t neighbours, std::int64_t chunk) {
    Rig rig(graph, core_limits(8, chunk, 256, 2048), graph.sampler());
    for (std::int64_t i = 0; i < neighbours; ++i)
      rig.submit(request_of(20 + 31 * i, 30, 91 + static_cast<std::uint64_t>(i)));
    const RequestId id = rig.submit(request);
    rig.run();
    return rig.answers[id];
  };
  const Answer alone = answer(0, 512);
  ASSERT_EQ(alone.ids.size(), 24u);
  for (const auto& [neighbours, chunk] : {std::pair{3, 512}, std::pair{7, 16}}) {
    const Answer other = answer(neighbours, chunk);
    EXPECT_EQ(other.ids, alone.ids);
    for (std::size_t i = 0; i < alone.logprobs.size(); ++i)
      EXPECT_EQ(other.logprobs[i].logprob, alone.logprobs[i].logprob);
  }
}

// Drafts right and wrong, of depths that change from step to step, while others read their prompts.
TEST_P(Identity, DraftsChangeNoBitAndSaveSteps) {
  std::vector<Request> requests;
  std::vector<std::vector<std::int32_t>> expected;
  auto drafter = std::make_unique<ScriptedDrafter>(3);
  for (int i = 0; i < 5; ++i) {
    requests.push_back(request_of(30 + 61 * i, 60, static_cast<std::uint64_t>(100 + i)));
    expected.push_back(solo(graph, requests.back()));
    drafter->script(requests.back(), expected.back());
  }
  Rig rig(graph, drafting(core_limits(5, 96, 256, 2048), 4), std::make_unique<BitsBelowPoison>(), std::move(drafter));
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(rig.submit(request));
  rig.run();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(rig.answers[ids[i]].ids, expected[i]) << i;
    const Timings& timings = rig.answers[ids[i]].last.timings;
    EXPECT_GT(timings.draft_n_accepted, 20) << i;
    EXPECT_LT(timings.draft_n_accepted, timings.draft_n) << i;
  }
}

// The model's own head, whose drafts are taken back or stand, in a batch that changes.
TEST_P(Identity, DraftsOfTheHeadChangeNoBit) {
  if (graph.model->native_draft() == nullptr) GTEST_SKIP() << "no MTP head";
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(request_of(1 + 47 * i, 40, static_cast<std::uint64_t>(200 + i)));
    requests.back().sampling.temperature = i % 2 == 0 ? 0 : 0.3;
    requests.back().sampling.seed = i;
  }
  const auto answers = [&](CoreLimits limits) {
    Rig rig(graph, limits, graph.sampler());
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(rig.submit(request));
    rig.run();
    std::vector<Answer> out;
    for (const RequestId id : ids) out.push_back(rig.answers[id]);
    return out;
  };
  const std::vector<Answer> plain = answers(core_limits(5, 96, 256, 2048));
  for (const std::int64_t depth : {1, 4}) {
    for (const Refresh refresh : {Refresh::from_target, Refresh::as_drafted}) {
      CoreLimits limits = drafting(core_limits(5, 96, 256, 2048), depth);
      limits.speculation.drafts_text = false;
      limits.speculation.refresh = refresh;
      const std::vector<Answer> drafted = answers(limits);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(drafted[i].ids, plain[i].ids) << i << ", depth " << depth;
        EXPECT_GT(drafted[i].last.timings.draft_n, 0);
      }
    }
  }
}

// Every few allocations of a run with drafts of the head fails once.
TEST_P(Identity, AnAllocationThatFailsBesideDraftsLosesNothing) {
  if (graph.model->native_draft() == nullptr) GTEST_SKIP() << "no MTP head";
  std::vector<Request> requests = {request_of(70, 6, 301), request_of(9, 9, 302), request_of(33, 5, 303)};
  std::vector<std::vector<std::int32_t>> expected;
  for (const Request& request : requests) expected.push_back(solo(graph, request));
  constexpr std::int64_t kStride = 31;
  for (std::int64_t nth = 1;; nth += kStride) {
    CoreLimits limits = drafting(core_limits(3, 64, 64, 2048), 3);
    limits.speculation.drafts_text = false;
    Rig rig(graph, limits);
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(rig.submit(request));
    const bool fired = run_failing_once(rig.core, nth, rig.answers);
    EXPECT_EQ(rig.core.state_pool().kv().used_blocks(), 0) << "at point " << nth;
    int failed = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Answer& answer = rig.answers[ids[i]];
      EXPECT_TRUE(answer.finished) << "request " << i << " at point " << nth;
      failed += answer.last.error.has_value();
      if (!answer.last.error) EXPECT_EQ(answer.ids, expected[i]) << "request " << i << " at point " << nth;
    }
    EXPECT_LE(failed, 1) << "at point " << nth;
    if (!fired) break;
  }
}

TEST_P(Identity, SeededAnswersAndTheirLogprobsDoNotDependOnDrafts) {
  Request request = request_of(40, 60, 90);
  request.sampling.temperature = 0.9;
  request.sampling.top_p = 0.95;
  request.sampling.seed = 31;
  request.sampling.top_logprobs = 2;
  request.sampling.repetition_penalty = 1.2;
  request.sampling.frequency_penalty = 0.3;
  const auto answer = [&](const CoreLimits& limits, std::unique_ptr<TextDrafter> drafter) {
    Rig rig(graph, limits, graph.sampler(), std::move(drafter));
    const RequestId id = rig.submit(request);
    rig.run();
    return rig.answers[id];
  };
  const Answer alone = answer(core_limits(1, 64, 64, 2048), nullptr);
  auto drafter = std::make_unique<ScriptedDrafter>(5);
  drafter->script(request, alone.ids);
  const Answer drafted = answer(drafting(core_limits(1, 64, 64, 2048), 3), std::move(drafter));
  EXPECT_EQ(drafted.ids, alone.ids);
  EXPECT_GT(drafted.last.timings.draft_n_accepted, 15);
  ASSERT_EQ(drafted.logprobs.size(), alone.logprobs.size());
  for (std::size_t i = 0; i < alone.logprobs.size(); ++i) {
    EXPECT_EQ(drafted.logprobs[i].logprob, alone.logprobs[i].logprob) << i;
    EXPECT_EQ(drafted.logprobs[i].top, alone.logprobs[i].top) << i;
  }
}

// Requests that come, go, are cancelled and fail at random moments, under random limits, with and without drafts:
// whoever finishes got the tokens of its solo run.
TEST_P(Identity, RandomSchedulesChangeNoBit) {
  std::map<std::uint64_t, std::vector<std::int32_t>> expected;
  const auto shape = [](std::uint64_t salt) {
    return request_of(1 + static_cast<std::int64_t>(mix(salt) % 140), 1 + static_cast<std::int64_t>(mix(salt + 5) % 12),
                      salt);
  };
  for (std::uint64_t salt = 0; salt < 12; ++salt) expected[salt] = solo(graph, shape(salt));
  EXPECT_TRUE(rc::check([&] {
    const std::int64_t rows = *rc::gen::inRange(1, 7), chunk = *rc::gen::inRange(1, 130);
    const CoreLimits limits = core_limits(rows, chunk, *rc::gen::inRange(3, 20), 2048);
    auto drafter = std::make_unique<ScriptedDrafter>(*rc::gen::arbitrary<std::uint64_t>());
    for (const auto& [salt, answer] : expected) drafter->script(shape(salt), answer);
    Rig rig(graph, drafting(limits, *rc::gen::inRange(0, 5)), std::make_unique<BitsBelowPoison>(), std::move(drafter));
    rig.model.poison = kPoison;
    std::map<RequestId, std::uint64_t> salts;
    std::vector<RequestId> all;
    const auto actions = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 1000));
    for (const int action : actions) {
      if (action < 400) {
        const auto salt = static_cast<std::uint64_t>(action % 12);
        all.push_back(rig.submit(shape(salt)));
        salts[all.back()] = salt;
      } else if (action < 460 && !all.empty()) {
        rig.core.cancel(all[static_cast<std::size_t>(action) % all.size()]);
      } else if (action < 520) {
        Request bad = shape(static_cast<std::uint64_t>(action));
        bad.ids.back() = kPoison;
        rig.submit(bad);
      } else {
        rig.step();
      }
    }
    rig.run();
    RC_ASSERT(rig.core.state_pool().kv().used_blocks() == 0);
    for (const auto& [id, salt] : salts) {
      const Answer& answer = rig.answers[id];
      RC_ASSERT(answer.finished);
      RC_ASSERT(!answer.last.error.has_value());
      const auto& want = expected.at(salt);
      RC_ASSERT(answer.ids.size() <= want.size());
      RC_ASSERT(std::equal(answer.ids.begin(), answer.ids.end(), want.begin()));
      if (answer.last.finish == FinishReason::length) RC_ASSERT(answer.ids.size() == want.size());
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Graphs, Identity,
                         testing::Values("models/mlx_b4_g64", "models/mlx_mixed", "models/qwen3", "models/long_600",
                                         "qwen3_5/mtp_pre_norm", "qwen3_5/mtp_post_norm_wrapped"),
                         [](const auto& info) {
                           const std::string path = info.param;
                           return path.substr(path.find('/') + 1);
                         });

}  // namespace
}  // namespace outrider
