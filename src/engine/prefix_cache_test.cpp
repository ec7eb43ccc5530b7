// Stored prefixes in the engine: warm requests answer with the bytes of cold ones, and say how much was cached.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/log.h"
#include "engine/sampler.h"
#include "engine/scripted_model.h"

namespace outrider {
namespace {

using Positions = std::vector<std::int64_t>;

TEST(CheckpointPositions, AreTheLastBlockTheMarksAndDistancesThatDouble) {
  EXPECT_EQ(checkpoint_positions(64, {}, 9), Positions{});
  EXPECT_EQ(checkpoint_positions(65, {}, 9), Positions{64});
  EXPECT_EQ(checkpoint_positions(1000, {}, 9), (Positions{448, 704, 960}));
  EXPECT_EQ(checkpoint_positions(2000, {}, 9), (Positions{960, 1472, 1728, 1984}));
  const Positions marks = {100, 200, 300, 400, 500, 999};
  EXPECT_EQ(checkpoint_positions(1000, marks, 99), (Positions{64, 256, 384, 448, 704, 960}));
}

TEST(CheckpointPositions, DropWhatMattersLeastFirst) {
  const Positions marks = {100, 500};
  EXPECT_EQ(checkpoint_positions(1000, marks, 3), (Positions{64, 448, 960}));
  EXPECT_EQ(checkpoint_positions(1000, marks, 2), (Positions{448, 960}));
  EXPECT_EQ(checkpoint_positions(1000, marks, 1), Positions{960});
  EXPECT_EQ(checkpoint_positions(1000, marks, 0), Positions{});
}

CoreLimits keeping(CoreLimits limits, std::uint64_t bytes = std::uint64_t{64} << 20) {
  limits.prefix_bytes = bytes;
  return limits;
}

Request request_of(std::int64_t prompt_tokens, std::int64_t max_tokens, std::uint64_t salt, std::int64_t vocab = 61) {
  Request request;
  for (std::int64_t i = 0; i < prompt_tokens; ++i)
    request.ids.push_back(static_cast<std::int32_t>(mix(salt * 4096 + static_cast<std::uint64_t>(i)) %
                                                    static_cast<std::uint64_t>(vocab)));
  request.max_tokens = max_tokens;
  return request;
}

Request followed_by(Request request, const std::vector<std::int32_t>& answer, const Request& more) {
  request.ids.insert(request.ids.end(), answer.begin(), answer.end());
  request.ids.insert(request.ids.end(), more.ids.begin(), more.ids.end());
  return request;
}

struct Rig {
  Core core;
  std::map<RequestId, Answer> answers;

  Rig(Model& model, Device& device, const CoreLimits& limits,
      std::unique_ptr<TokenChooser> chooser = std::make_unique<BitsChooser>(),
      std::unique_ptr<TextDrafter> drafter = nullptr)
      : core({&model, &device, nullptr, std::move(chooser), {}, std::move(drafter)}, limits) {
    set_log(LogLevel::off, LogFormat::text);
  }
  bool step() {
    return core.step([&](const Event& event) { collect(answers, event); });
  }
  void run() {
    while (step()) {
    }
    if (const PrefixCache* cache = core.prefix_cache())
      EXPECT_EQ(core.state_pool().kv().used_blocks(), cache->store().blocks());
  }
  Answer answer(Request request) {
    const RequestId id = core.submit(std::move(request)).value();
    run();
    return answers[id];
  }
};

class PrefixCacheOfBlocks : public testing::Test {
 protected:
  Answer cold(const Request& request) {
    Rig rig(model_, *device_, core_limits());
    return rig.answer(request);
  }
  ScriptedModel model_;
  std::unique_ptr<Device> device_ = make_cpu_device(1);
  Rig rig_{model_, *device_, keeping(core_limits())};
};

TEST_F(PrefixCacheOfBlocks, CountsWhatWasRestored) {
  for (const std::int64_t tokens : {1, 64, 65, 128, 129, 300}) {
    const Request request = request_of(tokens, 3, static_cast<std::uint64_t>(tokens));
    EXPECT_EQ(rig_.answer(request).last.usage.cached_tokens, 0) << tokens;
    const Answer warm = rig_.answer(request);
    EXPECT_EQ(warm.last.usage.cached_tokens, (tokens - 1) / 64 * 64);
    EXPECT_EQ(warm.last.timings.cache_n, (tokens - 1) / 64 * 64);
    EXPECT_EQ(warm.last.timings.prompt_n, tokens - (tokens - 1) / 64 * 64);
    EXPECT_EQ(warm.last.usage.prompt_tokens, tokens);
    EXPECT_EQ(warm.ids, cold(request).ids);
  }
}

TEST_F(PrefixCacheOfBlocks, TheNextTurnFindsTheAnswerToo) {
  const Request first = request_of(100, 90, 1);
  const Answer answer = rig_.answer(first);  // 189 tokens processed: the last one is not
  const Request next = followed_by(first, answer.ids, request_of(50, 0, 2));
  const Answer warm = rig_.answer(next);
  EXPECT_EQ(warm.last.usage.cached_tokens, 128);
  EXPECT_EQ(warm.ids, cold(next).ids);
}

TEST_F(PrefixCacheOfBlocks, RequestsAndScoringThatStayOutNeitherReadNorWrite) {
  Request request = request_of(200, 2, 3);
  request.cache_prompt = false;
  rig_.answer(request);
  Request scored = request_of(200, 0, 4);
  scored.want = Want::prompt_logprobs;
  EXPECT_EQ(rig_.answer(scored).prompt_logprobs.size(), 199u);
  EXPECT_EQ(rig_.core.prefix_cache()->store().blocks(), 0);
  request.cache_prompt = true;
  EXPECT_EQ(rig_.answer(request).last.usage.cached_tokens, 0);
  request.cache_prompt = false;
  EXPECT_EQ(rig_.answer(request).last.usage.cached_tokens, 0);
  scored.ids = request.ids;
  EXPECT_EQ(rig_.answer(scored).prompt_logprobs.size(), 199u);
}

TEST_F(PrefixCacheOfBlocks, RowsOfOneBatchShareTheirBlocks) {
  const Request first = request_of(257, 2, 5);
  rig_.answer(first);
  std::vector<RequestId> ids;
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 3; ++i) {
    requests.push_back(followed_by(first, {}, request_of(30, 40, 60 + i)));
    requests.back().max_tokens = 40;
    ids.push_back(rig_.core.submit(requests.back()).value());
  }
  rig_.step();
  EXPECT_EQ(rig_.core.state_pool().kv().used_blocks(), 4 + 3);
  rig_.run();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(rig_.answers[ids[i]].last.usage.cached_tokens, 256);
    EXPECT_EQ(rig_.answers[ids[i]].ids, cold(requests[i]).ids);
  }
}

TEST_F(PrefixCacheOfBlocks, ACancelledRowLeavesWhatItCommittedAndAFailedStepNothing) {
  Rig rig(model_, *device_, keeping(core_limits(4, 64)));
  const Request request = request_of(500, 4, 7);
  const RequestId id = rig.core.submit(request).value();
  for (int i = 0; i < 3; ++i) rig.step();
  rig.core.cancel(id);
  rig.run();
  EXPECT_EQ(rig.answer(request).last.usage.cached_tokens, 192);

  Request failing = request_of(300, 4, 8);
  model_.before_forward = [](const RaggedBatch& batch) {
    if (batch.rows[0].position >= 128) throw std::runtime_error("scripted failure");
  };
  EXPECT_TRUE(rig.answer(failing).last.error);
  model_.before_forward = nullptr;
  EXPECT_EQ(rig.answer(failing).last.usage.cached_tokens, 128);
}

TEST_F(PrefixCacheOfBlocks, MarksOutsideThePromptAreRefused) {
  Request request = request_of(100, 4, 7);
  for (const Positions& marks : {Positions{-1}, Positions{101}, Positions{50, 40}}) {
    request.prefix_marks = marks;
    const auto id = rig_.core.submit(request);
    ASSERT_FALSE(id);
    EXPECT_EQ(id.error().field, "prefix_marks");
  }
}

TEST_F(PrefixCacheOfBlocks, WithoutRoomForAnEntryThereIsNoCache) {
  Rig rig(model_, *device_, keeping(core_limits(), 100));
  EXPECT_EQ(rig.core.prefix_cache(), nullptr);
  EXPECT_EQ(rig.answer(request_of(200, 2, 9)).ids, cold(request_of(200, 2, 9)).ids);
}

// Random requests that begin alike, in caches of a few blocks: whoever answers, answers as alone.
TEST_F(PrefixCacheOfBlocks, TinyBudgetsChangeNoToken) {
  std::vector<Request> requests;
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint64_t i = 0; i < 8; ++i) {
    const Request start = request_of(static_cast<std::int64_t>(64 * (i % 3)), 0, 20 + i % 2);
    Request request = followed_by(start, {}, request_of(static_cast<std::int64_t>(1 + 37 * i), 0, 30 + i / 4));
    request.max_tokens = static_cast<std::int64_t>(5 + 20 * (i % 4));
    expected.push_back(cold(request).ids);
    requests.push_back(std::move(request));
  }
  EXPECT_TRUE(rc::check([&] {
    const std::uint64_t bytes = *rc::gen::inRange<std::uint64_t>(1000, 30000);
    Rig rig(model_, *device_, keeping(core_limits(*rc::gen::inRange(1, 5), *rc::gen::inRange(20, 200), 24), bytes));
    std::vector<std::pair<RequestId, std::size_t>> all;
    for (const int action : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 24))) {
      const auto which = static_cast<std::size_t>(action) % requests.size();
      if (action < 8)
        all.emplace_back(rig.core.submit(requests[which]).value(), which);
      else if (action < 10 && !all.empty())
        rig.core.cancel(all[which % all.size()].first);
      else
        rig.step();
    }
    rig.run();
    for (const auto& [id, which] : all) {
      const Answer& answer = rig.answers[id];
      RC_ASSERT(answer.finished && !answer.last.error.has_value());
      RC_ASSERT(answer.ids.size() <= expected[which].size());
      RC_ASSERT(std::equal(answer.ids.begin(), answer.ids.end(), expected[which].begin()));
    }
  }));
}

// --- Real graphs ---

struct Graph {
  std::unique_ptr<Device> device = make_cpu_device(2);
  std::unique_ptr<Model> model;
  explicit Graph(const std::string& name) {
    const auto source = open_model_source(OUTRIDER_SOURCE_DIR "/oracles/goldens/" + name);
    model = load_model(*source, Precision::packed, *device);
  }
  std::int64_t vocab() const { return model->declaration().vocab; }
  bool hybrid() const { return model->declaration().recurrent.layers > 0; }
};

// Proposes what the cold run answered, every fourth token wrong.
class KnowingDrafter : public TextDrafter {
 public:
  explicit KnowingDrafter(std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> answers)
      : answers_(std::move(answers)) {}
  std::int64_t propose(EngineRow& row, std::span<std::int32_t> out) override {
    const std::vector<std::int32_t>& answer = answers_.at(row.request.ids);
    for (std::size_t j = 0; j < out.size(); ++j) {
      const std::size_t at = static_cast<std::size_t>(row.generated()) + j;
      out[j] = at < answer.size() ? (answer[at] + (at % 4 == 3 ? 1 : 0)) % 50 : 0;
    }
    return std::ssize(out);
  }

 private:
  std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> answers_;
};

// Keys of a row of another length class are turned by other frequencies (models.md 2.2).
TEST(PrefixLengthClass, RowsOfAnotherClassShareNothing) {
  for (const char* name : {"models/rope_dynamic_beyond", "models/rope_longrope_short"}) {
    Graph graph(name);
    constexpr std::int64_t kLength = 200;  // beyond what both were trained on
    const auto cold = [&](const Request& request) {
      Rig rig(*graph.model, *graph.device, core_limits(1, 512, 64, 2048));
      return rig.answer(request).ids;
    };
    Rig rig(*graph.model, *graph.device, keeping(core_limits(1, 512, 64, 2048)));
    Request request = request_of(150, kLength - 150, 5, 50);
    rig.answer(request);
    EXPECT_EQ(rig.answer(request).last.usage.cached_tokens, 128) << name;
    request.max_tokens += 9;
    const bool another = graph.model->length_class(kLength) != graph.model->length_class(kLength + 9);
    const Answer other = rig.answer(request);
    EXPECT_EQ(other.last.usage.cached_tokens, another ? 0 : 128) << name;
    EXPECT_EQ(other.ids, cold(request)) << name;
    EXPECT_EQ(another, std::string_view(name) == "models/rope_dynamic_beyond");
  }
}

class PrefixIdentity : public testing::TestWithParam<const char*> {
 protected:
  static constexpr std::int64_t kPrompt = 300, kAnswer = 80;

  Graph graph_{GetParam()};
  Request first_ = request_of(kPrompt, kAnswer, 1, 50), again_ = first_, next_, branch_;
  std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> expected_;

  // What follows from `chooser`: a first request, the same again, its next turn, and one that leaves it after a mark.
  template <class MakeChooser>
  void prepare(const MakeChooser& chooser) {
    first_.prefix_marks = {130};
    again_ = first_;
    const auto cold = [&](const Request& request) {
      Rig rig(*graph_.model, *graph_.device, core_limits(1, 512, 64, 2048), chooser());
      return expected_[request.ids] = rig.answer(request).ids;
    };
    next_ = followed_by(first_, cold(first_), request_of(40, 0, 2, 50));
    next_.max_tokens = 10;
    branch_ = first_;
    branch_.ids.resize(128);
    branch_ = followed_by(branch_, {}, request_of(70, 0, 3, 50));
    branch_.max_tokens = 10;
    cold(next_);
    cold(branch_);
  }
  // Cached tokens of the four requests.
  template <class MakeChooser>
  Positions run(const CoreLimits& limits, const MakeChooser& chooser, std::unique_ptr<TextDrafter> drafter = nullptr) {
    Rig rig(*graph_.model, *graph_.device, keeping(limits), chooser(), std::move(drafter));
    Positions cached;
    for (const Request& request : {first_, again_, next_, branch_}) {
      const Answer answer = rig.answer(request);
      EXPECT_FALSE(answer.last.error) << answer.last.error->message;
      EXPECT_EQ(answer.ids, expected_.at(request.ids)) << cached.size();
      cached.push_back(answer.last.usage.cached_tokens);
    }
    EXPECT_EQ(rig.core.prefix_cache()->failures(), 0);
    return cached;
  }
  static std::unique_ptr<TokenChooser> bits() { return std::make_unique<BitsBelow>(); }
  std::unique_ptr<TokenChooser> greedy() const {
    return std::make_unique<Sampler>(graph_.vocab(), graph_.vocab(), std::vector<std::int32_t>{});
  }

 private:
  // The bits rule over ids below 50, as prompts have them.
  class BitsBelow : public TokenChooser {
   public:
    void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
      bits_.choose(device, logits, rows, out);
      for (Choice& choice : out) choice.id %= 50;
    }

   private:
    BitsChooser bits_;
  };
};

// 379 tokens of prompt and answer are processed before the next turn asks.
const Positions kAllCached = {0, 256, 320, 128};

TEST_P(PrefixIdentity, WarmIsColdInChunksOfAnySize) {
  prepare(bits);
  for (const std::int64_t chunk : {1, 7, 100, 512})
    EXPECT_EQ(run(core_limits(2, chunk, 64, 2048), bits), kAllCached) << "chunk " << chunk;
}

TEST_P(PrefixIdentity, WarmIsColdBesideDraftsThatCrossBlocks) {
  prepare(bits);
  for (const SpeculationLimits::Head head : {SpeculationLimits::Head::use, SpeculationLimits::Head::ignore}) {
    CoreLimits limits = drafting(core_limits(2, 90, 64, 2048), 4);
    limits.speculation.head = head;
    EXPECT_EQ(run(limits, bits, std::make_unique<KnowingDrafter>(expected_)), kAllCached);
  }
}

TEST_P(PrefixIdentity, WarmIsColdWithDraftsOfTheHead) {
  if (graph_.model->native_draft() == nullptr) GTEST_SKIP() << "no MTP head";
  const auto chooser = [&] { return greedy(); };
  prepare(chooser);
  CoreLimits limits = drafting(core_limits(2, 90, 64, 2048), 3);
  limits.speculation.drafts_text = false;
  EXPECT_EQ(run(limits, chooser), kAllCached);
  limits.speculation.refresh = Refresh::as_drafted;  // what was drafted is not stored
  const Positions cached = run(limits, chooser);
  EXPECT_EQ(cached[1], 256);
  EXPECT_GE(cached[2], 256);
}

// max_tokens 0: the prompt is only evaluated, for those who begin alike.
TEST_P(PrefixIdentity, APromptThatIsOnlyEvaluatedIsStored) {
  prepare(bits);
  Rig rig(*graph_.model, *graph_.device, keeping(drafting(core_limits(2, 90, 64, 2048), 3)), bits(),
          std::make_unique<KnowingDrafter>(expected_));
  Request evaluated = first_;
  evaluated.max_tokens = 0;
  EXPECT_TRUE(rig.answer(evaluated).ids.empty());
  const Answer warm = rig.answer(first_);
  EXPECT_EQ(warm.last.usage.cached_tokens, 256);
  EXPECT_EQ(warm.ids, expected_.at(first_.ids));
}

// A cache too small for everything, with rows beside each other.
TEST_P(PrefixIdentity, ABatchInATinyCacheChangesNoBit) {
  prepare(bits);
  CoreLimits limits = drafting(core_limits(4, 90, 96, 2048), 3);
  const PrefixParts parts = PrefixCache::parts_of(*graph_.model, limits.speculation);
  for (const std::uint64_t entries : {2U, 5U}) {
    limits.prefix_bytes = entries * (2 * parts.node_bytes() + parts.checkpoint_bytes());
    Rig rig(*graph_.model, *graph_.device, limits, bits(), std::make_unique<KnowingDrafter>(expected_));
    std::vector<std::pair<RequestId, const Request*>> all;
    for (int round = 0; round < 2; ++round)
      for (const Request* request : {&first_, &branch_, &next_, &again_, &branch_})
        all.emplace_back(rig.core.submit(*request).value(), request);
    rig.run();
    for (const auto& [id, request] : all) EXPECT_EQ(rig.answers[id].ids, expected_.at(request->ids));
    EXPECT_GT(rig.core.prefix_cache()->store().counters().hits, 0);
  }
}

// Every few allocations of a run fails once: nobody gets other tokens, and at most one request fails.
TEST_P(PrefixIdentity, AnAllocationThatFailsLosesNothing) {
  prepare(bits);
  constexpr std::int64_t kStride = 5;
  int cold = 0;
  for (std::int64_t nth = 1;; nth += kStride) {
    CoreLimits limits = drafting(core_limits(2, 512, 64, 2048), 3);
    limits.prefix_bytes = std::uint64_t{1} << 24;
    Rig rig(*graph_.model, *graph_.device, limits, bits(), std::make_unique<KnowingDrafter>(expected_));
    rig.answer(branch_);
    std::vector<std::pair<RequestId, const Request*>> all;
    for (const Request* request : {&next_, &branch_}) all.emplace_back(rig.core.submit(*request).value(), request);
    const bool fired = run_failing_once(rig.core, nth, rig.answers);
    EXPECT_EQ(rig.core.state_pool().kv().used_blocks(), rig.core.prefix_cache()->store().blocks()) << nth;
    int failed = 0;
    for (const auto& [id, request] : all) {
      const Answer& answer = rig.answers[id];
      failed += answer.last.error.has_value();
      if (!answer.last.error) EXPECT_EQ(answer.ids, expected_.at(request->ids)) << "at point " << nth;
    }
    EXPECT_LE(failed, 1) << "at point " << nth;
    cold += static_cast<int>(rig.core.prefix_cache()->failures());
    if (!fired) break;
  }
  if (kHeapIsCounted) EXPECT_GT(cold, 0);  // some failures met the cache alone
}

INSTANTIATE_TEST_SUITE_P(Graphs, PrefixIdentity,
                         testing::Values("models/mlx_b4_g64", "qwen3_5/mtp_pre_norm", "qwen3_5/mtp_post_norm_wrapped"),
                         [](const auto& info) {
                           const std::string path = info.param;
                           return path.substr(path.find('/') + 1);
                         });

// A row that never drafts costs the head nothing, unless others may begin as it did.
TEST(DraftHeadRows, FollowWhoMayDraftOrLeavesAPrefixBehind) {
  Graph graph("qwen3_5/mtp_pre_norm");
  CoreLimits limits = drafting(core_limits(2, 512, 64, 2048), 2);
  limits.speculation.drafts_text = false;
  const auto greedy = [&] {
    return std::make_unique<Sampler>(graph.vocab(), graph.vocab(), std::vector<std::int32_t>{});
  };
  const Request drafts = request_of(70, 12, 1, 50);
  Request draftless = request_of(70, 12, 2, 50);
  Rig plain(*graph.model, *graph.device, core_limits(1, 512, 64, 2048), greedy());
  const std::vector<std::int32_t> expected = plain.answer(draftless).ids, expected_beside = plain.answer(drafts).ids;
  draftless.draft_tokens = 0;
  for (const bool keeps : {false, true}) {
    Rig rig(*graph.model, *graph.device, keeps ? keeping(limits) : limits, greedy());
    const RequestId id = rig.core.submit(draftless).value();
    for (int step = 0; step < 4; ++step) rig.step();
    EXPECT_EQ(rig.core.speculation()->draft_pool()->used_blocks() > 0, keeps);
    // One that drafts joins it.
    const RequestId beside = rig.core.submit(drafts).value();
    for (int step = 0; step < 3; ++step) rig.step();
    EXPECT_GT(rig.core.speculation()->draft_pool()->used_blocks(), 0);
    rig.run();
    EXPECT_EQ(rig.answers[id].ids, expected);
    EXPECT_EQ(rig.answers[id].last.timings.draft_n, 0);
    EXPECT_EQ(rig.answers[beside].ids, expected_beside);
    EXPECT_GT(rig.answers[beside].last.timings.draft_n, 0);
    EXPECT_EQ(rig.core.speculation()->rows_without_head(), 0);
    EXPECT_EQ(rig.answer(draftless).last.usage.cached_tokens, keeps ? 64 : 0);
  }
}

}  // namespace
}  // namespace outrider
