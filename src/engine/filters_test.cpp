#include "engine/filters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/random.h"
#include "kernels/math.h"

namespace outrider {
namespace {

using testing::ElementsAre;

// Candidates with the given probabilities, ids 0, 1, ...
std::vector<Candidate> from_probabilities(const std::vector<double>& p) {
  std::vector<Candidate> all;
  for (std::size_t i = 0; i < p.size(); ++i) all.push_back({static_cast<std::int32_t>(i), std::log(p[i])});
  return all;
}

std::vector<std::int32_t> ids_of(std::span<const Candidate> kept) {
  std::vector<std::int32_t> ids;
  for (const Candidate& c : kept) ids.push_back(c.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::int32_t> top_p(std::vector<Candidate> all, double p) { return ids_of(keep_top_p(all, p, 1)); }

TEST(TopP, KeepsWhatHasLessThanPOfTheMassBeforeIt) {
  const auto all = from_probabilities({0.1, 0.5, 0.05, 0.3, 0.05});
  EXPECT_THAT(top_p(all, 1), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(top_p(all, 0.85), ElementsAre(0, 1, 3));
  EXPECT_THAT(top_p(all, 0.4), ElementsAre(1));
  EXPECT_THAT(top_p(all, 0), ElementsAre(1));
}

TEST(TopP, BreaksTiesByTheLowerId) {
  EXPECT_THAT(top_p(from_probabilities({0.25, 0.25, 0.25, 0.25}), 0.3), ElementsAre(0, 1));
}

TEST(TopP, AgreesWithASortOnFlatAndPeakedRows) {
  EXPECT_TRUE(rc::check([] {
    const auto n = *rc::gen::inRange(1, 300);
    const int spread = *rc::gen::inRange(1, 60);
    std::vector<Candidate> all;
    for (int i = 0; i < n; ++i) all.push_back({i, -spread * static_cast<double>(*rc::gen::inRange(0, 1000)) / 1000});
    double total = 0;
    for (const Candidate& c : all) total += exp64(c.l);
    const double p = *rc::gen::inRange(0, 1000) / 1000.0;
    auto sorted = all;
    std::sort(sorted.begin(), sorted.end(),
              [](const Candidate& a, const Candidate& b) { return a.l > b.l || (a.l == b.l && a.id < b.id); });
    std::vector<std::int32_t> expected;
    double before = 0;
    for (const Candidate& c : sorted) {
      if (!expected.empty() && !(before / total < p)) break;
      expected.push_back(c.id);
      before += exp64(c.l);
    }
    std::sort(expected.begin(), expected.end());
    RC_ASSERT(ids_of(keep_top_p(all, p, total)) == expected);
  }));
}

TEST(MinP, KeepsWhatIsWithinAFactorOfTheLikeliestAndTheBestFew) {
  auto all = from_probabilities({0.6, 0.3, 0.06, 0.04});
  EXPECT_THAT(ids_of(keep_min_p(all, 0, 1)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ids_of(keep_min_p(all, 0.4, 1)), ElementsAre(0, 1));
  EXPECT_THAT(ids_of(keep_min_p(all, 0.9, 3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(ids_of(keep_min_p(all, 1, 99)), ElementsAre(0, 1, 2, 3));
}

TEST(TopK, KeepsTheBestWithTiesByTheLowerId) {
  auto all = from_probabilities({0.2, 0.3, 0.2, 0.3});
  EXPECT_THAT(ids_of(keep_top_k(all, 3)), ElementsAre(0, 1, 3));
  EXPECT_THAT(ids_of(keep_top_k(all, 0)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ids_of(keep_top_k(all, -1)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ids_of(keep_top_k(all, 4)), ElementsAre(0, 1, 2, 3));
}

TEST(Xtc, DropsAllButTheLeastOfTheTokensAboveTheThreshold) {
  SamplingParams p;
  p.xtc_probability = 1;
  p.xtc_threshold = 0.15;
  const DrawKey key{1, 2, 3};
  auto all = from_probabilities({0.4, 0.3, 0.2, 0.1});
  EXPECT_THAT(ids_of(keep_xtc(all, p, key, {})), ElementsAre(2, 3));
  const std::vector<std::int32_t> ends = {0}, newlines = {1};
  all = from_probabilities({0.4, 0.3, 0.2, 0.1});
  EXPECT_THAT(ids_of(keep_xtc(all, p, key, {ends, {}})), ElementsAre(0, 2, 3));
  all = from_probabilities({0.4, 0.3, 0.2, 0.1});
  EXPECT_THAT(ids_of(keep_xtc(all, p, key, {{}, newlines})), ElementsAre(1, 2, 3));
  p.xtc_threshold = 0.35;  // one token above it: nothing happens
  all = from_probabilities({0.4, 0.3, 0.2, 0.1});
  EXPECT_EQ(keep_xtc(all, p, key, {}).size(), 4u);
}

TEST(Xtc, OpensItsGateByTheCounterGenerator) {
  SamplingParams p;
  p.xtc_probability = 0.3;
  p.xtc_threshold = 0.1;
  int opened = 0;
  for (std::uint32_t t = 0; t < 2000; ++t) {
    auto all = from_probabilities({0.5, 0.5});
    auto tight = from_probabilities({0.6, 0.4});
    const bool open = keep_xtc(tight, p, {7, t, 0}, {}).size() == 1;
    EXPECT_EQ(open, draw_uniform(7, 0, t, 0, DrawPurpose::xtc_gate) <= 0.3);
    EXPECT_EQ(keep_xtc(all, p, {7, t, 0}, {}).size(), 2u);  // equals: none is above the least
    opened += open;
  }
  EXPECT_NEAR(opened / 2000.0, 0.3, 0.04);
}

TEST(FilterOrder, MlxFiltersBeforeTheTemperatureAndTheOtherOrderAfterIt) {
  SamplingParams p;
  p.temperature = 5;
  p.top_p = 0.6;
  auto all = from_probabilities({0.7, 0.1, 0.1, 0.1});
  EXPECT_EQ(filter_candidates(all, p, {}, {}).size(), 1u);
  p.order = SamplerOrder::temperature_first;  // flattened first: about 0.32 and 3 x 0.22
  all = from_probabilities({0.7, 0.1, 0.1, 0.1});
  const auto kept = filter_candidates(all, p, {}, {});
  EXPECT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].l, 0);
}

TEST(FilterOrder, TemperatureFirstRenormalisesAfterTopK) {
  SamplingParams p;
  p.temperature = 1;
  p.order = SamplerOrder::temperature_first;
  p.top_k = 2;
  p.top_p = 0.59;  // of {0.3, 0.2} renormalised, 0.6 comes before the second: it goes
  auto all = from_probabilities({0.3, 0.2, 0.2, 0.2, 0.1});
  EXPECT_THAT(ids_of(filter_candidates(all, p, {}, {})), ElementsAre(0));
  p.order = SamplerOrder::mlx;  // full-vocabulary mass: 0.3, then 0.5 before the third
  all = from_probabilities({0.3, 0.2, 0.2, 0.2, 0.1});
  EXPECT_THAT(ids_of(filter_candidates(all, p, {}, {})), ElementsAre(0, 1));
}

// The draw without any skipping.
std::int32_t draw_plainly(std::span<const Candidate> s, const DrawKey& key) {
  double best = -std::numeric_limits<double>::infinity();
  std::int32_t id = -1;
  for (const Candidate& c : s) {
    const double u = draw_uniform(key.seed, static_cast<std::uint32_t>(c.id), key.t, key.choice, DrawPurpose::target);
    const double value = c.l - log64(-log64(u));
    if (value > best) best = value, id = c.id;
  }
  return id;
}

TEST(Draw, SkippingHopelessTokensChangesNothing) {
  std::vector<Candidate> s;
  for (std::int32_t id = 0; id < 3000; ++id) s.push_back({id, -0.02 * ((id * 7919) % 3000)});
  for (std::uint32_t t = 0; t < 300; ++t) EXPECT_EQ(draw(s, {-99, t, 1}), draw_plainly(s, {-99, t, 1}));
}

TEST(Draw, IsCategorical) {
  const std::vector<double> p = {0.05, 0.4, 0.25, 0.1, 0.15, 0.05};
  const auto s = from_probabilities(p);
  std::vector<int> counts(p.size());
  constexpr int kDraws = 40000;
  for (std::uint32_t t = 0; t < kDraws; ++t) ++counts[static_cast<std::size_t>(draw(s, {12345, t, 0}))];
  double chi2 = 0;
  for (std::size_t i = 0; i < p.size(); ++i) chi2 += std::pow(counts[i] - kDraws * p[i], 2) / (kDraws * p[i]);
  EXPECT_LT(chi2, 20.5);  // 5 degrees of freedom, 0.1 %
}

TEST(Draw, DependsOnSeedPositionAndChoiceOnly) {
  const auto s = from_probabilities(std::vector<double>(64, 1.0 / 64));
  std::set<std::int32_t> seen;
  for (std::uint32_t choice = 0; choice < 30; ++choice) seen.insert(draw(s, {5, 9, choice}));
  EXPECT_GT(seen.size(), 10u);
  // A token's noise does not depend on which others are left.
  const std::int32_t winner = draw(s, {5, 9, 0});
  const std::vector<Candidate> pair = {s[static_cast<std::size_t>(winner)],
                                       s[static_cast<std::size_t>((winner + 1) % 64)]};
  EXPECT_EQ(draw(pair, {5, 9, 0}), winner);
}

}  // namespace
}  // namespace outrider
