// A categorical draw with noise that belongs to a token and its place, not to an order of draws (serving.md 2.2, 2.3).
// The target's sampler and the drafts share it: with the same noise they choose the same token where they agree. All
// arithmetic is f64 with the project's own exp and log, so that the same bytes come out everywhere.
#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"

namespace outrider {

// A token that may still be chosen and its log-probability (or, once scaled, log-probability / T).
struct Candidate {
  std::int32_t id = 0;
  double l = 0;
};

// Rank: likelier first, lower id on ties.
inline bool ranks_before(const Candidate& a, const Candidate& b) { return a.l > b.l || (a.l == b.l && a.id < b.id); }

// Who asks: the noise of a token depends on this, the purpose and its id alone.
struct DrawKey {
  std::int64_t seed = 0;
  std::uint32_t t = 0;
  std::uint32_t choice = 0;
};

// argmax of s_v + G_v, G_v = -ln(-ln u_v), lowest id on ties: an exact draw from exp(s)/sum exp(s). `s` is non-empty.
// -1: a NaN among them, or none above -inf.
std::int32_t draw(std::span<const Candidate> s, const DrawKey& key, DrawPurpose purpose = DrawPurpose::target);

}  // namespace outrider
