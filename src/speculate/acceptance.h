// Which drafted tokens stand (serving.md section 3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

// p, q: the target's and the draft's survivors with their scores s_v (any shift), ascending ids; the distributions are
// exp(s)/sum. A draft chosen as argmax has q of that one token. A draft that the grammar forbids has no p: it is
// rejected. Owns a workspace; one thread at a time.
class RatioRule {
 public:
  // The draft itself: a draw from q of its own purpose.
  static std::int32_t propose(std::span<const Candidate> q, const DrawKey& key) {
    return draw(q, key, DrawPurpose::draft);
  }
  // Accepted iff u <= p(x)/q(x); else the token is drawn from max(p - q, 0). If that is nothing, the draft is accepted.
  RatioVerdict judge(std::int32_t draft, std::span<const Candidate> p, std::span<const Candidate> q,
                     const DrawKey& key);

 private:
  std::vector<Candidate> residual_;
};

}  // namespace outrider
