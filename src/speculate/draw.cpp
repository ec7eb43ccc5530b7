#include "speculate/draw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "kernels/math.h"

namespace outrider {

std::int32_t draw(std::span<const Candidate> s, const DrawKey& key, DrawPurpose purpose) {
  constexpr double kLn2 = 0.69314718055994531;
  // G lies in (-3.14, 22.88), and -ln(-ln u) <= -ln(1-u) <= (j+1) ln 2 for a word with j leading ones: both skips are
  // exact, and with the likeliest token scored first they leave a handful of logarithms.
  constexpr double kLargestNoise = 22.88;
  const std::array<std::uint32_t, 2> seed = {static_cast<std::uint32_t>(static_cast<std::uint64_t>(key.seed)),
                                             static_cast<std::uint32_t>(static_cast<std::uint64_t>(key.seed) >> 32)};
  double best = -std::numeric_limits<double>::infinity();
  std::int32_t best_id = -1;
  const auto score = [&](const Candidate& c, std::uint32_t word) {
    if (c.l + (std::countl_one(word) + 1) * kLn2 < best) return;
    const double u = (word + 0.5) * 0x1p-32;
    const double value = c.l - log64(-log64(u));
    if (value > best || (value == best && c.id < best_id)) {
      best = value;
      best_id = c.id;
    }
  };
  const Candidate& likeliest =
      *std::min_element(s.begin(), s.end(), [](const Candidate& a, const Candidate& b) { return ranks_before(a, b); });
  score(likeliest, draw_word(key.seed, static_cast<std::uint32_t>(likeliest.id), key.t, key.choice, purpose));
  std::uint32_t held_block = ~0u;  // four consecutive ids share one Philox block
  std::array<std::uint32_t, 4> words{};
  for (const Candidate& c : s) {
    if (c.l + kLargestNoise < best) continue;
    const auto lane = static_cast<std::uint32_t>(c.id);
    if (lane >> 2 != held_block) {
      held_block = lane >> 2;
      words = philox4x32({held_block, key.t, key.choice, static_cast<std::uint32_t>(purpose)}, seed);
    }
    score(c, words[lane & 3]);
  }
  return best_id;
}

}  // namespace outrider
