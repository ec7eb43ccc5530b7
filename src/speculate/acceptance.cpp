#include "speculate/acceptance.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "kernels/math.h"

namespace outrider {
namespace {

// exp(s)/sum of a candidate; the sum runs over ascending ids.
struct Distribution {
  std::span<const Candidate> of;
  double top = -std::numeric_limits<double>::infinity();
  double total = 0;

  explicit Distribution(std::span<const Candidate> all) : of(all) {
    for (const Candidate& c : all) top = std::max(top, c.l);
    for (const Candidate& c : all) total += exp64(c.l - top);
  }
  double at(const Candidate& c) const { return exp64(c.l - top) / total; }
  double of_token(std::int32_t id) const {
    const auto found = std::lower_bound(of.begin(), of.end(), id,
                                        [](const Candidate& c, std::int32_t wanted) { return c.id < wanted; });
    return found != of.end() && found->id == id ? at(*found) : 0;
  }
};

}  // namespace

std::int64_t accept_exact(std::span<const std::int32_t> proposals, std::span<const std::int32_t> choices) {
  OUTRIDER_CHECK(choices.size() == proposals.size() + 1, "{} choices for {} proposals", choices.size(),
                 proposals.size());
  return std::mismatch(proposals.begin(), proposals.end(), choices.begin()).first - proposals.begin();
}

RatioVerdict RatioRule::judge(std::int32_t draft, std::span<const Candidate> p, std::span<const Candidate> q,
                              const DrawKey& key) {
  OUTRIDER_CHECK(!p.empty() && !q.empty(), "{} target and {} draft candidates", p.size(), q.size());
  const Distribution target(p), drafted(q);
  const double u = draw_uniform(key.seed, 0, key.t, key.choice, DrawPurpose::acceptance);
  const double in_p = target.of_token(draft), in_q = drafted.of_token(draft);
  if (in_p > 0 && u * in_q <= in_p) return {RatioVerdict::Draft::accepted, draft};
  residual_.clear();
  std::size_t j = 0;
  for (const Candidate& c : p) {
    while (j < q.size() && q[j].id < c.id) ++j;
    const double rest = target.at(c) - (j < q.size() && q[j].id == c.id ? drafted.at(q[j]) : 0);
    if (rest > 0) residual_.push_back({c.id, log64(rest)});
  }
  if (residual_.empty()) return {RatioVerdict::Draft::accepted, draft};
  return {RatioVerdict::Draft::rejected, draw(residual_, key, DrawPurpose::residual)};
}

}  // namespace outrider
