#include "engine/filters.h"

#include <algorithm>
#include <limits>

#include "base/random.h"
#include "kernels/math.h"

namespace outrider {
namespace {

// std heaps keep their largest element first: the largest in this order is the first in rank.
bool ranks_after(const Candidate& a, const Candidate& b) { return ranks_before(b, a); }

double largest(std::span<const Candidate> all) {
  double best = -std::numeric_limits<double>::infinity();
  for (const Candidate& c : all) best = std::max(best, c.l);
  return best;
}

// Sums run over ascending ids, whatever filter left them in whatever order.
void sort_by_id(std::span<Candidate> all) {
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::is_sorted(all.begin(), all.end(), by_id)) std::sort(all.begin(), all.end(), by_id);
}

double sum_of_exp(std::span<const Candidate> all) {
  double sum = 0;
  for (const Candidate& c : all) sum += exp64(c.l);
  return sum;
}

bool contains(std::span<const std::int32_t> sorted, std::int32_t id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

// Shifts so that the largest is 0: exp() of unnormalised scores then neither overflows nor vanishes.
void scale_and_shift(std::span<Candidate> all, double temperature) {
  const double top = largest(all);
  for (Candidate& c : all) c.l = (c.l - top) / temperature;
}

// The candidates whose mass ranked before is below p, taken from a heap of `pool`, moved to its end in rank order.
// Returns how many, or -1 if the pool is used up before the mass is reached.
std::ptrdiff_t take_mass(std::span<Candidate> pool, double p, double total) {
  std::make_heap(pool.begin(), pool.end(), ranks_after);
  double before = 0;
  std::ptrdiff_t taken = 0;
  for (auto end = pool.end(); end != pool.begin(); --end) {
    if (taken > 0 && !(before / total < p)) return taken;
    std::pop_heap(pool.begin(), end, ranks_after);
    before += exp64((end - 1)->l);
    ++taken;
  }
  return before / total < p ? -1 : taken;
}

}  // namespace

std::span<Candidate> keep_top_p(std::span<Candidate> all, double p, double total) {
  if (p >= 1) return all;
  // Nearly always the mass lies within a factor e^-10 of the best: a small heap decides, the whole one rarely.
  const double near = largest(all) - 10;
  const auto middle = std::partition(all.begin(), all.end(), [&](const Candidate& c) { return c.l >= near; });
  std::span<Candidate> pool(all.begin(), middle);
  std::ptrdiff_t taken = take_mass(pool, p, total);
  if (taken < 0) {
    pool = all;
    taken = take_mass(pool, p, total);
    if (taken < 0) return all;
  }
  // The taken ones stand at the pool's end, the best last.
  std::reverse(pool.begin(), pool.end());
  return pool.first(static_cast<std::size_t>(taken));
}

std::span<Candidate> keep_min_p(std::span<Candidate> all, double m, std::int64_t min_tokens_to_keep) {
  if (m <= 0) return all;
  const double limit = largest(all) + log64(m);
  const auto best = std::min(static_cast<std::size_t>(std::max<std::int64_t>(min_tokens_to_keep, 1)), all.size());
  if (best < all.size())
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(best), all.end(), ranks_before);
  const auto kept = std::partition(all.begin() + static_cast<std::ptrdiff_t>(best), all.end(),
                                   [&](const Candidate& c) { return c.l >= limit; });
  return {all.begin(), kept};
}

std::span<Candidate> keep_xtc(std::span<Candidate> all, const SamplingParams& params, const DrawKey& key,
                              const XtcExempt& exempt) {
  if (params.xtc_probability <= 0) return all;
  const double u = draw_uniform(key.seed, 0, key.t, key.choice, DrawPurpose::xtc_gate);
  if (u > params.xtc_probability) return all;
  sort_by_id(all);
  const double total = sum_of_exp(all);
  double least = std::numeric_limits<double>::infinity();
  std::int64_t above = 0;
  for (const Candidate& c : all) {
    const double share = exp64(c.l) / total;
    if (share <= params.xtc_threshold) continue;
    ++above;
    least = std::min(least, share);
  }
  if (above < 2) return all;
  const auto kept = std::remove_if(all.begin(), all.end(), [&](const Candidate& c) {
    const double share = exp64(c.l) / total;
    return share > params.xtc_threshold && share > least && !contains(exempt.end_tokens, c.id) &&
           !contains(exempt.newlines, c.id);
  });
  return {all.begin(), kept};
}

std::span<Candidate> keep_top_k(std::span<Candidate> all, std::int64_t k) {
  if (k <= 0 || k >= static_cast<std::int64_t>(all.size())) return all;
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(k), all.end(), ranks_before);
  return all.first(static_cast<std::size_t>(k));
}

std::span<Candidate> filter_candidates(std::span<Candidate> all, const SamplingParams& p, const DrawKey& key,
                                       const XtcExempt& exempt) {
  if (p.order == SamplerOrder::mlx) {
    all = keep_top_p(all, p.top_p, 1);
    all = keep_min_p(all, p.min_p, p.min_tokens_to_keep);
    all = keep_xtc(all, p, key, exempt);
    all = keep_top_k(all, p.top_k);
    scale_and_shift(all, p.temperature);
  } else {
    scale_and_shift(all, p.temperature);
    all = keep_top_k(all, p.top_k);
    sort_by_id(all);
    all = keep_top_p(all, p.top_p, p.top_p < 1 ? sum_of_exp(all) : 1);
    all = keep_min_p(all, p.min_p, p.min_tokens_to_keep);
    all = keep_xtc(all, p, key, exempt);
    scale_and_shift(all, 1);
  }
  sort_by_id(all);
  return all;
}

}  // namespace outrider
