// The rules of serving.md section 3 through the engine: a scripted target, a draft head with random weights or a
// scripted drafter, the real sampler. What is sampled with drafts has the distribution of plain sampling.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "base/log.h"
#include "engine/processors.h"
#include "engine/rolled_state.h"
#include "engine/sampler.h"
#include "engine/scripted_model.h"
#include "speculate/acceptance.h"
#include "speculate/draft_fixture.h"

namespace outrider {
namespace {

constexpr std::int64_t kTokens = 10;  // the tokenizer's: the other columns of both heads are padding
constexpr std::int64_t kVocab = DraftFixture::kVocab, kWidth = DraftFixture::kWidth;

// The scripted model's distributions, softened, on hiddens of the head's width.
class TargetWithHead : public Model {
 public:
  explicit TargetWithHead(const NativeDraft* draft)
      : inner_(kVocab), declaration_(inner_.declaration()), draft_(draft) {
    declaration_.width = kWidth;
    declaration_.native_draft = draft != nullptr ? Support::yes : Support::no;
  }
  const Declaration& declaration() const override { return declaration_; }
  std::size_t weight_bytes() const override { return 0; }
  std::size_t scratch_bytes(const Device& device, const StepLimits& limits) const override {
    return inner_.scratch_bytes(device, limits) + tensor_bytes(limits.tokens + limits.head_rows, kWidth) + 4096;
  }
  Tensor forward(const Step& step, const RaggedBatch& batch) override {
    const Tensor wide = step.arena.tensor(batch.size(), kWidth);
    const Arena::Scope scope(step.arena);
    const Tensor narrow = inner_.forward(step, batch);
    for (std::int64_t i = 0; i < wide.rows; ++i)
      for (std::int64_t c = 0; c < kWidth; ++c) wide.row(i)[c] = c < 4 ? narrow.row(i)[c] * 0x1p-16F : 0;
    return wide;
  }
  Tensor run_layer_range(const Step&, const RaggedBatch&, Tensor h, std::int64_t, std::int64_t) override { return h; }
  void head(const Step& step, Tensor hidden, Tensor logits) override {
    const Arena::Scope scope(step.arena);
    const Tensor narrow = step.arena.tensor(hidden.rows, 4);
    for (std::int64_t r = 0; r < hidden.rows; ++r)
      for (std::int64_t c = 0; c < 4; ++c) narrow.row(r)[c] = hidden.row(r)[c] * 0x1p16F;
    inner_.head(step, narrow, logits);
    for (std::int64_t r = 0; r < logits.rows; ++r)
      for (std::int64_t v = 0; v < logits.width; ++v) logits.row(r)[v] *= 0.15F;
  }
  const NativeDraft* native_draft() const override { return draft_; }

  // What head(forward()) gives behind these tokens.
  static std::vector<float> logits_of(std::span<const std::int32_t> tokens) {
    std::uint64_t hash = 0;
    for (const std::int32_t id : tokens) hash = mix(hash + static_cast<std::uint64_t>(id) + 1);
    std::vector<float> z(kVocab);
    for (std::size_t v = 0; v < z.size(); ++v) z[v] = static_cast<float>(mix(hash + v * 7919) >> 40) * 0x1p-20F * 0.15F;
    return z;
  }

 private:
  ScriptedModel inner_;
  Declaration declaration_;
  const NativeDraft* draft_;
};

Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu_device(1);
  return *device;
}

// Its distributions are about as soft as the target's, or nearly all drafts would share one fate.
struct SoftHead : DraftFixture {
  SoftHead() : DraftFixture(FixtureWeights::dense, 5) {
    draft.tap = HiddenTap::pre_norm;
    for (float& weight : draft.weights.norm.weight.as<float>()) weight *= 0.12F;
  }
};

const NativeDraft& random_head() {
  static const SoftHead fixture;
  return fixture.draft;
}

std::unique_ptr<Sampler> sampler() { return std::make_unique<Sampler>(kVocab, kTokens, std::vector<std::int32_t>{}); }

// Proposals that have nothing to do with the target: the next tokens in order.
class CountingDrafter : public TextDrafter {
 public:
  std::int64_t propose(EngineRow& row, std::span<std::int32_t> out) override {
    std::int32_t id = row.tokens.back();
    for (std::int32_t& each : out) each = id = (id + 1) % kTokens;
    return std::ssize(out);
  }
};

enum class Drafts { none, of_the_head, of_a_text };

struct Rig {
  TargetWithHead model;
  Core core;
  std::map<RequestId, Answer> answers;

  struct Speculating {
    Drafts drafts = Drafts::none;
    std::int64_t depth = 0;
    std::vector<std::int32_t> vocabulary = {};  // of drafts
  };
  explicit Rig(const Speculating& how, std::unique_ptr<TokenChooser> chooser = sampler())
      : model(how.drafts == Drafts::of_the_head ? &random_head() : nullptr),
        core(parts(how, std::move(chooser)), limits(how)) {
    set_log(LogLevel::off, LogFormat::text);
  }
  CoreParts parts(const Speculating& how, std::unique_ptr<TokenChooser> chooser) {
    CoreParts parts{&model, &cpu(), nullptr, std::move(chooser), {7}};
    if (how.drafts == Drafts::of_a_text) parts.drafter = std::make_unique<CountingDrafter>();
    parts.draft_vocabulary = how.vocabulary;
    return parts;
  }
  static CoreLimits limits(const Speculating& how) {
    CoreLimits limits = core_limits(32, 64, 64, 256);
    limits.speculation.depth = how.depth;
    limits.speculation.drafts_text = false;
    limits.speculation.vocabulary_rows = std::ssize(how.vocabulary);
    if (!how.vocabulary.empty()) limits.speculation.depths = DraftDepths::fixed;  // and with it this arm
    return limits;
  }
  RequestId submit(Request request) { return core.submit(std::move(request)).value(); }
  void run() {
    while (core.step([&](const Event& event) { collect(answers, event); })) {
    }
  }
};

constexpr std::int64_t kLength = 4;

// Behind n tokens of the answer every third token is forbidden, others for another n.
class EveryThird : public RolledState {
 public:
  static bool allows(std::int64_t n, std::int64_t id) { return (id + n) % 3 != 0; }
  static std::vector<std::uint32_t> bits(std::int64_t n) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(mask_words(kVocab)));
    for (std::int64_t id = 0; id < kVocab; ++id)
      if (allows(n, id)) words[static_cast<std::size_t>(id / 32)] |= 1U << (id % 32);
    return words;
  }
  std::unique_ptr<RolledState> clone() const override { return std::make_unique<EveryThird>(*this); }
  bool mask(std::span<std::uint32_t> allowed) override {
    std::ranges::copy(bits(n_), allowed.begin());
    return true;
  }
  std::int64_t forced(std::span<std::int32_t>) override { return 0; }
  bool advance(std::int32_t id) override {
    if (!allows(n_, id)) return false;
    ++n_;
    return true;
  }
  void roll_back(std::int64_t count) noexcept override { n_ -= count; }
  void keep() noexcept override {}
  bool complete() const override { return false; }

 private:
  std::int64_t n_ = 0;
};

enum class Masks { none, every_third };

Request sampled(SpecRule rule, std::int64_t seed, Masks masks = Masks::none) {
  Request request;
  request.ids = {3, 1, 4};
  request.max_tokens = kLength;
  request.sampling.temperature = 0.7;
  request.sampling.top_p = 0.9;
  request.sampling.repetition_penalty = 1.4;
  request.sampling.ignore_eos = true;
  request.sampling.seed = seed;
  request.spec_rule = rule;
  request.draft_depths = DraftDepths::fixed;
  if (masks == Masks::every_third) request.rolled = std::make_shared<EveryThird>();
  return request;
}

// The distribution of the next token of such a request, by the real processors and filters.
std::vector<std::pair<std::int32_t, double>> target_of(const std::vector<std::int32_t>& tokens, Masks masks) {
  const Request request = sampled(SpecRule::automatic, 0);
  const std::int32_t ends[] = {7};
  const auto prompt = std::ssize(request.ids);
  std::vector<float> z = TargetWithHead::logits_of(tokens);
  z.resize(kTokens);
  ChoosingRow choosing{&request.sampling, tokens, prompt, std::ssize(tokens) - prompt, 0, ends};
  const std::vector<std::uint32_t> bits = EveryThird::bits(choosing.t);
  if (masks == Masks::every_third) choosing.allowed = bits;
  apply_processors(z, choosing);
  double sum = 0;
  for (const float value : z) sum += std::exp(static_cast<double>(value));
  std::vector<Candidate> all;
  for (std::size_t v = 0; v < z.size(); ++v)
    if (std::isfinite(z[v])) all.push_back({static_cast<std::int32_t>(v), z[v] - std::log(sum)});
  std::vector<std::pair<std::int32_t, double>> out;
  double total = 0;
  for (const Candidate& c : filter_candidates(all, request.sampling, {}, {ends, {}})) {
    out.emplace_back(c.id, std::exp(c.l));
    total += out.back().second;
  }
  for (auto& [id, share] : out) share /= total;
  return out;
}

using Pair = std::pair<std::int32_t, std::int32_t>;
// Of the answers' tokens i and i + 1.
using PairTables = std::array<std::map<Pair, double>, kLength - 1>;

const PairTables& expected_shares(Masks masks) {
  static std::map<Masks, PairTables> known;
  const auto [found, fresh] = known.try_emplace(masks);
  PairTables& made = found->second;
  const std::vector<std::int32_t> prompt = sampled(SpecRule::automatic, 0).ids;
  const auto walk = [&](const auto& self, std::vector<std::int32_t> tokens, double share) -> void {
    if (tokens.size() == prompt.size() + kLength) {
      for (std::size_t i = 0; i + 1 < kLength; ++i)
        made[i][{tokens[prompt.size() + i], tokens[prompt.size() + i + 1]}] += share;
      return;
    }
    for (const auto& [id, of_it] : target_of(tokens, masks)) {
      tokens.push_back(id);
      self(self, tokens, share * of_it);
      tokens.pop_back();
    }
  };
  if (fresh) walk(walk, prompt, 1);
  return made;
}

// Upper 0.1 % point of chi-square (Wilson and Hilferty).
double critical(double degrees) {
  const double z = 3.09, a = 2 / (9 * degrees);
  return degrees * std::pow(1 - a + z * std::sqrt(a), 3);
}

struct Sampled {
  Masks masks = Masks::none;
  PairTables counts;
  std::int64_t draws = 0, drafted = 0, accepted = 0;
  // The largest chi-square of a table over its critical value: above 1 the distribution is another.
  double worst() const {
    double worst = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      double sum = 0, rare_expected = 0, rare_seen = static_cast<double>(draws);
      int cells = 0;
      for (const auto& [pair, share] : expected_shares(masks)[i]) {
        const double expected = share * static_cast<double>(draws);
        const auto found = counts[i].find(pair);
        const double seen = found == counts[i].end() ? 0 : found->second;
        if (expected < 10) {
          rare_expected += expected;
          continue;
        }
        rare_seen -= seen;
        sum += (seen - expected) * (seen - expected) / expected;
        ++cells;
      }
      // Pairs that plain sampling never gives are among the rare ones.
      rare_expected = std::max(rare_expected, 1.0);
      sum += (rare_seen - rare_expected) * (rare_seen - rare_expected) / rare_expected;
      worst = std::max(worst, sum / critical(cells));
    }
    return worst;
  }
};

Sampled draw_many(Rig& rig, SpecRule rule, std::int64_t draws, std::int64_t first_seed, Masks masks = Masks::none) {
  constexpr std::int64_t kAtOnce = 128;
  for (std::int64_t i = 0; i < draws; ++i) {
    rig.submit(sampled(rule, first_seed + i, masks));
    if (i % kAtOnce == kAtOnce - 1 || i + 1 == draws) rig.run();
  }
  Sampled out;
  out.masks = masks;
  out.draws = draws;
  for (const auto& [id, answer] : rig.answers) {
    EXPECT_EQ(std::ssize(answer.ids), kLength);
    for (std::size_t i = 0; i + 1 < kLength; ++i) ++out.counts[i][{answer.ids[i], answer.ids[i + 1]}];
    out.drafted += answer.last.timings.draft_n;
    out.accepted += answer.last.timings.draft_n_accepted;
  }
  return out;
}

constexpr std::int64_t kDraws = 5000;

struct Case {
  SpecRule rule;
  Rig::Speculating how;
  Masks masks = Masks::none;
};

TEST(SpecRule, DraftsLeaveTheDistributionOfPlainSampling) {
  Rig plain({});
  EXPECT_LT(draw_many(plain, SpecRule::automatic, kDraws, 1'000'000).worst(), 1);
  Rig masked({});
  EXPECT_LT(draw_many(masked, SpecRule::automatic, kDraws, 500'000, Masks::every_third).worst(), 1);
  std::int64_t first_seed = 2'000'000;
  for (const auto& [rule, how, masks] :
       {Case{SpecRule::ratio, {Drafts::of_the_head, 1}}, Case{SpecRule::ratio, {Drafts::of_the_head, 3}},
        Case{SpecRule::ratio, {Drafts::of_the_head, 3, {0, 2, 5, 6, 8, 100}}},
        Case{SpecRule::ratio, {Drafts::of_a_text, 3}}, Case{SpecRule::coupled, {Drafts::of_the_head, 3}},
        // A draft that a mask forbids is decided as a rejection.
        Case{SpecRule::ratio, {Drafts::of_the_head, 3}, Masks::every_third},
        Case{SpecRule::ratio, {Drafts::of_a_text, 3}, Masks::every_third},
        Case{SpecRule::coupled, {Drafts::of_the_head, 3}, Masks::every_third}}) {
    Rig rig(how);
    const Sampled sampled = draw_many(rig, rule, kDraws, first_seed += 1'000'000, masks);
    EXPECT_LT(sampled.worst(), 1) << "rule " << static_cast<int>(rule) << ", depth " << how.depth << ", masks "
                                  << static_cast<int>(masks);
    // Both fates occur, or the test says nothing.
    EXPECT_GT(sampled.accepted, sampled.drafted / 50);
    EXPECT_LT(sampled.accepted, sampled.drafted * 49 / 50);
    EXPECT_GE(sampled.drafted, kDraws);
  }
}

// The control: the same test tells wrong rules apart.
enum class Mistake {
  ratio_turned_over,  // u <= q(x)/p(x), and max(q - p, 0)
  residual_of_p       // a rejected draft is followed by a plain draw
};

class WrongRule : public TokenChooser {
 public:
  explicit WrongRule(Mistake mistake) : mistake_(mistake) {}

  void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Tensor row = logits.slice(static_cast<std::int64_t>(i), 1);
      if (rows[i].drawing == Drawing::verdict)
        judge(device, row, rows[i], out[i]);
      else
        right_.choose(device, row, rows.subspan(i, 1), out.subspan(i, 1));
    }
  }

 private:
  void judge(Device& device, Tensor logits, const ChoosingRow& row, Choice& out) {
    std::vector<float> p(kVocab);
    ChoosingRow as_draft = row;  // which gives p
    as_draft.drawing = Drawing::draft;
    as_draft.draft_scores = p;
    right_.choose(device, logits, {&as_draft, 1}, {&out, 1});
    const DrawKey key{row.seed, static_cast<std::uint32_t>(row.t), 0};
    if (mistake_ == Mistake::ratio_turned_over) {
      out.id = judge_by_ratio(row.draft, candidates(row.draft_scores), p, key).id;
      return;
    }
    std::vector<Candidate> target = candidates(p);
    out.id = judge_by_ratio(row.draft, target, row.draft_scores, key).id;
    if (out.id != row.draft) out.id = draw(candidates(p), key, DrawPurpose::residual);
  }
  std::vector<Candidate>& candidates(std::span<const float> scores) {
    candidates_.clear();
    for (std::size_t v = 0; v < scores.size(); ++v)
      if (std::isfinite(scores[v])) candidates_.push_back({static_cast<std::int32_t>(v), scores[v]});
    return candidates_;
  }

  Mistake mistake_;
  Sampler right_{kVocab, kTokens, {}};
  std::vector<Candidate> candidates_;
};

TEST(SpecRule, TheTestOfTheDistributionTellsWrongRulesApart) {
  for (const Mistake mistake : {Mistake::ratio_turned_over, Mistake::residual_of_p}) {
    Rig rig({Drafts::of_the_head, 3}, std::make_unique<WrongRule>(mistake));
    EXPECT_GT(draw_many(rig, SpecRule::ratio, kDraws, 3'000'000).worst(), 2) << static_cast<int>(mistake);
  }
}

TEST(SpecRule, RatioGivesTheSameAnswerForASeedWithFixedDepthsWhateverRunsBeside) {
  const auto answer = [](std::int64_t neighbours) {
    Rig rig({Drafts::of_the_head, 3});
    for (std::int64_t i = 0; i < neighbours; ++i) {
      Request other = sampled(i % 2 == 0 ? SpecRule::ratio : SpecRule::coupled, 100 + i);
      other.max_tokens = 5 + 3 * i;
      other.draft_tokens = i % 4;
      rig.submit(other);
    }
    Request request = sampled(SpecRule::ratio, 11);
    request.max_tokens = 60;
    const RequestId id = rig.submit(request);
    rig.run();
    return rig.answers[id];
  };
  const Answer alone = answer(0);
  ASSERT_EQ(alone.ids.size(), 60U);
  EXPECT_GT(alone.last.timings.draft_n_accepted, 5);
  for (const std::int64_t neighbours : {1, 9}) EXPECT_EQ(answer(neighbours).ids, alone.ids) << neighbours;
}

TEST(SpecRule, RatioWithoutDraftsIsPlainSamplingWithTheSameNoise) {
  Request request = sampled(SpecRule::automatic, 12);
  request.max_tokens = 60;
  Rig plain({});
  const RequestId id = plain.submit(request);
  plain.run();
  request.spec_rule = SpecRule::ratio;
  request.draft_tokens = 0;
  Rig ratio({Drafts::of_the_head, 3});
  const RequestId same = ratio.submit(request);
  ratio.run();
  EXPECT_EQ(ratio.answers[same].ids, plain.answers[id].ids);
}

TEST(SpecRule, CoupledAnswersAreThoseWithoutDraftsBesideRatioRows) {
  Request request = sampled(SpecRule::coupled, 13);
  request.max_tokens = 60;
  Rig plain({});
  const RequestId id = plain.submit(request);
  plain.run();
  Rig mixed({Drafts::of_the_head, 4});
  mixed.submit(sampled(SpecRule::ratio, 5));
  const RequestId same = mixed.submit(request);
  Request long_one = sampled(SpecRule::ratio, 6);
  long_one.max_tokens = 40;
  mixed.submit(long_one);
  mixed.run();
  EXPECT_EQ(mixed.answers[same].ids, plain.answers[id].ids);
}

// Log-probabilities are the target's, behind the drafts that stand; penalties and the end mask see them too.
TEST(SpecRule, RatioReportsTheTargetsLogprobsAndKeepsMinTokens) {
  Rig rig({Drafts::of_the_head, 3});
  for (std::int64_t seed = 0; seed < 40; ++seed) {
    Request request = sampled(SpecRule::ratio, seed);
    request.sampling.ignore_eos = false;
    request.sampling.min_tokens = 6;
    request.sampling.logprobs = true;
    request.max_tokens = 30;
    rig.submit(request);
  }
  rig.run();
  std::int64_t ended_early = 0;
  for (const auto& [id, answer] : rig.answers) {
    Request request = sampled(SpecRule::ratio, 0);
    request.sampling.ignore_eos = false;
    request.sampling.min_tokens = 6;
    ASSERT_GE(answer.ids.size(), 7U);
    ASSERT_EQ(answer.logprobs.size(), answer.ids.size());
    ended_early += answer.last.finish == FinishReason::stop;
    std::vector<std::int32_t> tokens = request.ids;
    const std::int32_t ends[] = {7};
    for (std::size_t t = 0; t < answer.ids.size(); ++t) {
      std::vector<float> z = TargetWithHead::logits_of(tokens);
      z.resize(kTokens);
      apply_processors(z, {&request.sampling, tokens, 3, static_cast<std::int64_t>(t), 0, ends});
      double sum = 0;
      for (const float value : z) sum += std::exp(static_cast<double>(value));
      EXPECT_NEAR(answer.logprobs[t].logprob, z[static_cast<std::size_t>(answer.ids[t])] - std::log(sum), 1e-5);
      tokens.push_back(answer.ids[t]);
    }
  }
  EXPECT_GT(ended_early, 10);
}

// Notes what is proposed.
class NotingChooser : public TokenChooser {
 public:
  explicit NotingChooser(std::set<std::int32_t>& drafts) : drafts_(drafts) {}
  void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
    sampler_.choose(device, logits, rows, out);
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (rows[i].report == LogprobReport::none && !out[i].failure) drafts_.insert(out[i].id);
  }

 private:
  std::set<std::int32_t>& drafts_;
  Sampler sampler_{kVocab, kTokens, {}};
};

TEST(DraftVocabulary, ProposesItsTokensAndChangesNoText) {
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request request = sampled(i % 2 == 0 ? SpecRule::coupled : SpecRule::greedy, i);
    if (i % 2 == 1) request.sampling.temperature = 0;
    request.ids.push_back(i);
    request.max_tokens = 50;
    requests.push_back(request);
  }
  struct Run {
    std::vector<std::vector<std::int32_t>> texts;
    std::set<std::int32_t> drafts;
    std::int64_t accepted = 0;
  };
  const auto run = [&](const Rig::Speculating& how) {
    Run out;
    Rig rig(how, std::make_unique<NotingChooser>(out.drafts));
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(rig.submit(request));
    rig.run();
    for (const RequestId id : ids) {
      out.texts.push_back(rig.answers[id].ids);
      out.accepted += rig.answers[id].last.timings.draft_n_accepted;
    }
    return out;
  };
  const Run plain = run({});
  const std::vector<std::int32_t> some = {1, 3, 4, 9, 50};
  for (const std::int64_t depth : {1, 4}) {
    const Run drafted = run({Drafts::of_the_head, depth, some});
    EXPECT_EQ(drafted.texts, plain.texts);
    EXPECT_GT(drafted.accepted, 5);
    EXPECT_EQ(drafted.drafts, (std::set<std::int32_t>{1, 3, 4, 9})) << "what the tokenizer lacks is never proposed";
  }
  // None of the vocabulary may be chosen: there is nothing to propose, and no error.
  const Run nothing = run({Drafts::of_the_head, 3, {40, 50}});
  EXPECT_EQ(nothing.texts, plain.texts);
  EXPECT_TRUE(nothing.drafts.empty());
}

// A head that is never right: proposals are the target's choice plus one.
class ContraryChooser : public TokenChooser {
 public:
  void choose(Device&, Tensor, std::span<const ChoosingRow> rows, std::span<Choice> out) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto t = static_cast<std::uint64_t>(rows[i].t);
      const auto right = static_cast<std::int32_t>(rows[i].seed == 0 ? mix(t) % 10 : t % 3);
      const bool helps = rows[i].seed == 1 && t == 40;
      out[i].id = rows[i].report == LogprobReport::none && !helps ? (right + 1) % 10 : right;
    }
  }
};

TEST(HeadGuard, TakesAHeadAwayThatWasNeverRightAndLeavesTextDrafts) {
  CoreLimits limits = Rig::limits({Drafts::of_the_head, 4});
  limits.speculation.drafts_text = true;
  limits.speculation.depths = DraftDepths::fixed;
  TargetWithHead model(&random_head());
  Core core({&model, &cpu(), nullptr, std::make_unique<ContraryChooser>(), {}}, limits);
  std::map<RequestId, Answer> answers;
  const auto answer = [&](std::int64_t seed, std::int64_t max_tokens) {
    Request request = sampled(SpecRule::automatic, seed);
    request.max_tokens = max_tokens;
    const RequestId id = core.submit(request).value();
    while (core.step([&](const Event& event) { collect(answers, event); })) {
    }
    return answers[id];
  };
  std::int64_t drafted = 0;
  while (!core.speculation()->gave_head_up()) {
    ASSERT_LT(drafted, 2000);
    const Answer random = answer(0, 40);
    drafted += random.last.timings.draft_n;
  }
  EXPECT_GE(drafted, Speculation::kGuardDrafts);
  EXPECT_FALSE(core.speculation()->has_head());
  const Answer periodic = answer(2, 60);
  ASSERT_EQ(periodic.ids.size(), 60U);
  for (std::size_t t = 0; t < 60; ++t) EXPECT_EQ(periodic.ids[t], static_cast<std::int32_t>(t % 3));
  EXPECT_GT(periodic.last.timings.draft_n_accepted, 30);
}

TEST(HeadGuard, LeavesAHeadThatWasRightOnce) {
  CoreLimits limits = Rig::limits({Drafts::of_the_head, 1});
  limits.speculation.depths = DraftDepths::fixed;
  TargetWithHead model(&random_head());
  Core core({&model, &cpu(), nullptr, std::make_unique<ContraryChooser>(), {}}, limits);
  Request request = sampled(SpecRule::automatic, 1);
  request.max_tokens = 240;
  std::map<RequestId, Answer> answers;
  const RequestId id = core.submit(request).value();
  while (core.step([&](const Event& event) { collect(answers, event); })) {
  }
  EXPECT_EQ(answers[id].last.timings.draft_n_accepted, 1);
  EXPECT_GT(answers[id].last.timings.draft_n, Speculation::kGuardDrafts);
  EXPECT_FALSE(core.speculation()->gave_head_up());
}

}  // namespace
}  // namespace outrider
