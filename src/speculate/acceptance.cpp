#include "speculate/acceptance.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "kernels/math.h"

namespace outrider {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// exp(s)/sum of a score; the sum runs over ascending ids.
struct Distribution {
  double top = kNever;
  double total = 0;

  void note_top(double score) { top = std::max(top, score); }
  void add(double score) { total += exp64(score - top); }
  double at(double score) const { return score > kNever ? exp64(score - top) / total : 0; }
};

Distribution distribution_of(std::span<const Candidate> all) {
  Distribution out;
  for (const Candidate& c : all) out.note_top(c.l);
  for (const Candidate& c : all) out.add(c.l);
  return out;
}

Distribution distribution_of(std::span<const float> scores) {
  Distribution out;
  for (const float score : scores) out.note_top(score);
  for (const float score : scores)
    if (score > kNever) out.add(score);
  return out;
}

double score_of(std::span<const Candidate> all, std::int32_t id) {
  const auto found = std::lower_bound(all.begin(), all.end(), id,
                                      [](const Candidate& c, std::int32_t wanted) { return c.id < wanted; });
  return found != all.end() && found->id == id ? found->l : kNever;
}

}  // namespace

std::int64_t accept_exact(std::span<const std::int32_t> proposals, std::span<const std::int32_t> choices) {
  OUTRIDER_CHECK(choices.size() == proposals.size() + 1, "{} choices for {} proposals", choices.size(),
                 proposals.size());
  return std::mismatch(proposals.begin(), proposals.end(), choices.begin()).first - proposals.begin();
}

std::int32_t propose_by_ratio(std::span<Candidate> q, std::span<float> scores, const DrawKey& key) {
  constexpr double kLowest = std::numeric_limits<float>::lowest();
  std::fill(scores.begin(), scores.end(), -std::numeric_limits<float>::infinity());
  for (Candidate& c : q) {
    const auto rounded = static_cast<float>(std::max(c.l, kLowest));
    c.l = scores[static_cast<std::size_t>(c.id)] = rounded;
  }
  return draw(q, key, DrawPurpose::draft);
}

RatioVerdict judge_by_ratio(std::int32_t draft, std::span<Candidate> p, std::span<const float> q, const DrawKey& key) {
  OUTRIDER_CHECK(!p.empty(), "no candidate of the target");
  const Distribution target = distribution_of(p), drafted = distribution_of(q);
  const auto in_q = [&](std::int32_t id) {
    return q.empty() ? (id == draft ? 1.0 : 0.0) : drafted.at(q[static_cast<std::size_t>(id)]);
  };
  const double u = draw_uniform(key.seed, 0, key.t, key.choice, DrawPurpose::acceptance);
  const double of_target = target.at(score_of(p, draft));
  if (of_target > 0 && u * in_q(draft) <= of_target) return {RatioVerdict::Draft::accepted, draft};
  std::size_t left = 0;
  for (const Candidate& c : p)
    if (const double rest = target.at(c.l) - in_q(c.id); rest > 0) p[left++] = {c.id, log64(rest)};
  if (left == 0) return {RatioVerdict::Draft::accepted, draft};
  return {RatioVerdict::Draft::rejected, draw(p.first(left), key, DrawPurpose::residual)};
}

}  // namespace outrider
