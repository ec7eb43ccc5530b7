// Which drafted tokens stand (serving.md section 3).
#pragma once

#include <cstdint>
#include <span>

#include "speculate/draw.h"

namespace outrider {

// greedy and coupled: `choices[j]` is what the target chooses at window position j, with the drafts before j in its
// history and the noise of that token's index; a draft stands iff it is that choice. Returns how many of `proposals`
// stand; the row then emits choices[0 .. that], the last one in place of the first wrong draft or behind them all.
// choices: one more than proposals.
std::int64_t accept_exact(std::span<const std::int32_t> proposals, std::span<const std::int32_t> choices);

// ratio: the fate of one draft.
struct RatioVerdict {
  enum class Draft : std::uint8_t { accepted, rejected };
  Draft draft = Draft::rejected;
  std::int32_t id = -1;  // the token emitted here: the draft, or the one in its place
};

// The draft itself: a draw from q, its survivors with their scores s_v (any shift), ascending ids. The judgement needs
// this q again: scores [V] becomes s_v in f32, -inf where nothing survived. What is drawn from, and is left in q, are
// the rounded scores, so that both know the same distribution. -1: as draw().
std::int32_t propose_by_ratio(std::span<Candidate> q, std::span<float> scores, const DrawKey& key);

// Accepted iff u <= p(x)/q(x); else the token is drawn from max(p - q, 0). If that is nothing, the draft is accepted.
// p: the target's survivors as above, exp(s)/sum; overwritten. q: the scores of the draft's distribution; empty: the
// draft was its only token (an argmax, or a proposal of the text). A draft that the target's masks forbid has no p: it
// is rejected.
RatioVerdict judge_by_ratio(std::int32_t draft, std::span<Candidate> p, std::span<const float> q, const DrawKey& key);

}  // namespace outrider
