// The filters of serving.md 2.2 over the candidates of one row. All arithmetic is f64 with the
// project's own exp and log, so that the same bytes come out everywhere.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine.h"
#include "speculate/draw.h"

namespace outrider {

// Tokens that xtc never drops: end tokens and newline ids, each list sorted.
struct XtcExempt {
  std::span<const std::int32_t> end_tokens;
  std::span<const std::int32_t> newlines;
};

// Each keeps a front part of `all` and returns it; the order inside may change. At least one candidate always stays.
// top_p: mass ranked strictly before v (l descending, id ascending) below p; `total` is what exp(l) sums to.
std::span<Candidate> keep_top_p(std::span<Candidate> all, double p, double total);
std::span<Candidate> keep_min_p(std::span<Candidate> all, double m, std::int64_t min_tokens_to_keep);
std::span<Candidate> keep_xtc(std::span<Candidate> all, const SamplingParams& params, const DrawKey& key,
                              const XtcExempt& exempt);
std::span<Candidate> keep_top_k(std::span<Candidate> all, std::int64_t k);

// All filters in the order the parameters ask for, temperature included: what is left has l = s_v, maximum 0.
// `all`: the finite candidates of the row, ids ascending; params.temperature > 0.
std::span<Candidate> filter_candidates(std::span<Candidate> all, const SamplingParams& params, const DrawKey& key,
                                       const XtcExempt& exempt);

}  // namespace outrider
