// The acceptance rules of serving.md section 3 over toy models whose distributions depend on the whole prefix.
#include "speculate/acceptance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/math.h"

namespace outrider {
namespace {

constexpr std::int32_t kVocab = 16;

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 31) * 0x9E3779B97F4A7C15ull;
  return x ^ x >> 29;
}

// Scores of the next token. `noise`: how far a draft is from the target. A quarter of the tokens does not survive the
// filters of either.
const std::vector<Candidate>& scores(const std::vector<std::int32_t>& prefix, double noise) {
  std::uint64_t hash = 7;
  for (const std::int32_t id : prefix) hash = mixed(hash + static_cast<std::uint64_t>(id) + 1);
  static std::map<std::pair<std::uint64_t, double>, std::vector<Candidate>> made;
  std::vector<Candidate>& out = made[{hash, noise}];
  if (!out.empty()) return out;
  for (std::int32_t v = 0; v < kVocab; ++v) {
    const std::uint64_t own = mixed(hash + static_cast<std::uint64_t>(v) * 977);
    const std::uint64_t other = mixed(own + 5);
    const bool kept = noise > 0 ? other % 5 != 0 : own % 4 != 0;
    if (!kept && v != 3) continue;
    const auto unit = [](std::uint64_t x) { return static_cast<double>(x >> 40) * 0x1p-24; };
    out.push_back({v, 3 * unit(own) + noise * unit(other)});
  }
  return out;
}

std::vector<std::int32_t> plain(std::int64_t seed, std::size_t length) {
  std::vector<std::int32_t> text;
  while (text.size() < length)
    text.push_back(draw(scores(text, 0), {seed, static_cast<std::uint32_t>(text.size()), 0}));
  return text;
}

struct Speculated {
  std::vector<std::int32_t> text;
  std::int64_t drafted = 0, accepted = 0;
};

// Draft and target share the noise of a token's index.
Speculated coupled(std::int64_t seed, std::size_t length, std::size_t depth, double noise) {
  Speculated out;
  while (out.text.size() < length) {
    std::vector<std::int32_t> proposals, choices, prefix = out.text;
    for (std::size_t j = 0; j < depth; ++j) {
      proposals.push_back(draw(scores(prefix, noise), {seed, static_cast<std::uint32_t>(prefix.size()), 0}));
      prefix.push_back(proposals.back());
    }
    prefix = out.text;
    for (std::size_t j = 0; j <= depth; ++j) {
      choices.push_back(draw(scores(prefix, 0), {seed, static_cast<std::uint32_t>(prefix.size()), 0}));
      if (j < depth) prefix.push_back(proposals[j]);
    }
    const std::int64_t accepted = accept_exact(proposals, choices);
    out.text.insert(out.text.end(), choices.begin(), choices.begin() + accepted + 1);
    out.drafted += std::min<std::int64_t>(accepted + 1, static_cast<std::int64_t>(depth));
    out.accepted += accepted;
  }
  out.text.resize(length);
  return out;
}

TEST(AcceptExact, KeepsTheLongestRightBeginning) {
  const std::int32_t choices[] = {4, 5, 6, 7};
  EXPECT_EQ(accept_exact(std::vector<std::int32_t>{4, 5, 6}, choices), 3);
  EXPECT_EQ(accept_exact(std::vector<std::int32_t>{4, 9, 6}, choices), 1);
  EXPECT_EQ(accept_exact(std::vector<std::int32_t>{9, 5, 6}, choices), 0);
  EXPECT_EQ(accept_exact({}, std::span(choices).first(1)), 0);
}

TEST(Coupled, TheTextIsThePlainOneWhateverTheDrafterAndDepth) {
  for (const std::int64_t seed : {1L, 42L, -7L}) {
    const std::vector<std::int32_t> expected = plain(seed, 200);
    for (const std::size_t depth : {1u, 2u, 4u})
      for (const double noise : {0.0, 1.0, 20.0})
        EXPECT_EQ(coupled(seed, 200, depth, noise).text, expected) << depth << " " << noise;
  }
}

TEST(Coupled, ADrafterThatIsTheTargetIsAlwaysRightAndOthersAtLeastAsOftenAsTheBound) {
  const Speculated same = coupled(5, 2000, 4, 0);
  EXPECT_EQ(same.accepted, same.drafted);
  // Gumbel coupling accepts at least (1-d)/(1+d) at total variation d [arXiv 2408.07978].
  const Speculated near = coupled(5, 20000, 1, 1.0);
  const std::vector<std::int32_t> text = plain(5, 20000);
  double bound = 0;
  std::vector<std::int32_t> prefix;
  for (std::size_t t = 0; t < 500; ++t) {
    std::map<std::int32_t, double> p, q;
    const auto fill = [](std::map<std::int32_t, double>& to, const std::vector<Candidate>& from) {
      double total = 0;
      for (const Candidate& c : from) total += std::exp(c.l);
      for (const Candidate& c : from) to[c.id] = std::exp(c.l) / total;
    };
    fill(p, scores(prefix, 0));
    fill(q, scores(prefix, 1.0));
    double d = 0;
    for (std::int32_t v = 0; v < kVocab; ++v) d += std::abs(p[v] - q[v]) / 2;
    bound += (1 - d) / (1 + d) / 500;
    prefix.push_back(text[t]);
  }
  const double rate = static_cast<double>(near.accepted) / static_cast<double>(near.drafted);
  EXPECT_GT(rate, bound - 0.03);
  EXPECT_LT(rate, 0.999);
}

std::vector<float> dense(const std::vector<Candidate>& q) {
  std::vector<float> out(kVocab, -std::numeric_limits<float>::infinity());
  for (const Candidate& c : q) out[static_cast<std::size_t>(c.id)] = static_cast<float>(c.l);
  return out;
}

// Upper 0.1 % point of chi-square (Wilson and Hilferty).
double critical(double degrees) {
  const double z = 3.09, a = 2 / (9 * degrees);
  return degrees * std::pow(1 - a + z * std::sqrt(a), 3);
}

// Pairs of tokens by rounds of `depth` drafts, against the target's own distribution of pairs.
double chi_square_of_pairs(int draws, std::size_t depth, bool argmax, double& degrees) {
  constexpr double noise = 4;
  std::map<std::pair<std::int32_t, std::int32_t>, int> seen;
  for (std::int64_t seed = 0; seed < draws; ++seed) {
    std::vector<std::int32_t> text;
    while (text.size() < 2) {
      const std::size_t begin = text.size();
      std::vector<std::int32_t> proposals, prefix = text;
      std::vector<std::vector<float>> q(depth);
      for (std::size_t j = 0; j < depth; ++j) {
        std::vector<Candidate> drafted = scores(prefix, noise);
        const DrawKey key{seed, static_cast<std::uint32_t>(prefix.size()), 0};
        if (argmax) {
          proposals.push_back(std::min_element(drafted.begin(), drafted.end(), ranks_before)->id);
        } else {
          q[j].resize(kVocab);
          proposals.push_back(propose_by_ratio(drafted, q[j], key));
        }
        prefix.push_back(proposals.back());
      }
      bool going = true;
      for (std::size_t j = 0; j < depth && going; ++j) {
        const DrawKey key{seed, static_cast<std::uint32_t>(begin + j), 0};
        std::vector<Candidate> p = scores(text, 0);
        const RatioVerdict verdict = judge_by_ratio(proposals[j], p, q[j], key);
        text.push_back(verdict.id);
        going = verdict.draft == RatioVerdict::Draft::accepted;
      }
      if (going) text.push_back(draw(scores(text, 0), {seed, static_cast<std::uint32_t>(text.size()), 0}));
    }
    ++seen[{text[0], text[1]}];
  }
  double sum = 0;
  int cells = 0;
  double rare_expected = 0, rare_seen = 0;
  const auto shares = [](const std::vector<std::int32_t>& prefix) {
    std::vector<Candidate> all = scores(prefix, 0);
    double total = 0;
    for (const Candidate& c : all) total += std::exp(c.l);
    for (Candidate& c : all) c.l = std::exp(c.l) / total;
    return all;
  };
  for (const Candidate& a : shares({}))
    for (const Candidate& b : shares({a.id})) {
      const double expected = draws * a.l * b.l, got = seen[{a.id, b.id}];
      if (expected < 10) {
        rare_expected += expected;
        rare_seen += got;
        continue;
      }
      sum += (got - expected) * (got - expected) / expected;
      ++cells;
    }
  if (rare_expected > 0) sum += (rare_seen - rare_expected) * (rare_seen - rare_expected) / rare_expected;
  degrees = cells - (rare_expected > 0 ? 0 : 1);
  return sum;
}

TEST(Ratio, TheDistributionIsTheTargets) {
  for (const std::size_t depth : {1u, 2u}) {
    for (const bool argmax : {false, true}) {
      double degrees = 0;
      const int draws = depth == 2 && !argmax ? 100000 : 20000;
      const double sum = chi_square_of_pairs(draws, depth, argmax, degrees);
      EXPECT_LT(sum, critical(degrees)) << depth << " " << argmax << ", " << degrees << " degrees";
    }
  }
}

TEST(Ratio, AcceptsOneMinusTheTotalVariation) {
  const std::vector<Candidate> p = {{0, log64(0.5)}, {1, log64(0.3)}, {2, log64(0.2)}};
  const std::vector<Candidate> q = {{0, log64(0.2)}, {1, log64(0.3)}, {4, log64(0.5)}};
  int accepted = 0, residual[5] = {};
  for (std::int64_t seed = 0; seed < 20000; ++seed) {
    const DrawKey key{seed, 9, 2};
    std::vector<Candidate> target = p, drafted = q;
    std::vector<float> kept(kVocab);
    const std::int32_t draft = propose_by_ratio(drafted, kept, key);
    const RatioVerdict verdict = judge_by_ratio(draft, target, kept, key);
    if (verdict.draft == RatioVerdict::Draft::accepted)
      ++accepted;
    else
      ++residual[verdict.id];
  }
  EXPECT_NEAR(accepted / 20000.0, 0.5, 0.012);
  EXPECT_EQ(residual[1] + residual[4], 0);  // p = q there, or no p at all
  EXPECT_NEAR(static_cast<double>(residual[0]) / (residual[0] + residual[2]), 0.6, 0.02);
}

TEST(Ratio, RejectsWhatTheGrammarForbidsAndAcceptsWhenNothingIsLeft) {
  const std::vector<Candidate> p = {{2, 0.0}}, q = {{1, 0.0}, {2, -3.0}};
  for (std::int64_t seed = 0; seed < 50; ++seed) {
    std::vector<Candidate> target = p;
    const RatioVerdict verdict = judge_by_ratio(1, target, dense(q), {seed, 0, 0});
    EXPECT_EQ(verdict.draft, RatioVerdict::Draft::rejected);
    EXPECT_EQ(verdict.id, 2);
    target = p;
    EXPECT_EQ(judge_by_ratio(1, target, {}, {seed, 0, 0}).id, 2);
    target = p;
    EXPECT_EQ(judge_by_ratio(2, target, dense(p), {seed, 0, 0}).draft, RatioVerdict::Draft::accepted);
  }
}

// A score far below f32 (a temperature near 0) is the least there is, not infinite: its token has no share either way.
TEST(Ratio, DrawsFromTheScoresItKeeps) {
  std::vector<Candidate> q = {{1, 0.1}, {2, 0.0}, {5, -1e302}};
  std::vector<float> kept(kVocab, 7.0F);
  for (std::int64_t seed = 0; seed < 50; ++seed) {
    std::vector<Candidate> drafted = q;
    const std::int32_t id = propose_by_ratio(drafted, kept, {seed, 3, 0});
    EXPECT_TRUE(id == 1 || id == 2);
    for (const Candidate& c : drafted) EXPECT_EQ(c.l, static_cast<double>(kept[static_cast<std::size_t>(c.id)]));
  }
  EXPECT_EQ(kept[1], 0.1F);
  EXPECT_TRUE(std::isinf(kept[0]) && std::isinf(kept[3]) && std::isfinite(kept[5]));
}

}  // namespace
}  // namespace outrider
