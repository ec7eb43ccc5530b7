// The counter-based generator of serving.md 2.3: Philox4x32-10 [Salmon et al. 2011]. No state, no draw order.
#pragma once

#include <array>
#include <cstdint>

namespace outrider {

// What a draw is for; the number is part of the counter and of the contract.
enum class DrawPurpose : std::uint32_t { target = 0, xtc_gate = 1, draft = 2, acceptance = 3, residual = 4 };

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// Word of (seed, lane, t, choice, purpose): key = low and high 32 bits of the seed; counter = (lane >> 2, t, choice,
// purpose); output word lane & 3.
std::uint32_t draw_word(std::int64_t seed, std::uint32_t lane, std::uint32_t t, std::uint32_t choice,
                        DrawPurpose purpose);
// u = (w + 0.5)/2^32, in (0, 1).
double draw_uniform(std::int64_t seed, std::uint32_t lane, std::uint32_t t, std::uint32_t choice, DrawPurpose purpose);

// 53 random bits from the operating system, for requests without a seed.
std::int64_t random_seed();

}  // namespace outrider
