#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace outrider {
namespace {

// The published constants of Philox4x32 [Salmon et al. 2011, table 2] and its Weyl sequence of keys.
constexpr std::uint32_t kMultiplier0 = 0xD2511F53;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

std::uint32_t draw_word(std::int64_t seed, std::uint32_t lane, std::uint32_t t, std::uint32_t choice,
                        DrawPurpose purpose) {
  const auto bits = static_cast<std::uint64_t>(seed);
  return philox4x32({lane >> 2, t, choice, static_cast<std::uint32_t>(purpose)},
                    {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)})[lane & 3];
}

double draw_uniform(std::int64_t seed, std::uint32_t lane, std::uint32_t t, std::uint32_t choice, DrawPurpose purpose) {
  return (static_cast<double>(draw_word(seed, lane, t, choice, purpose)) + 0.5) * 0x1p-32;
}

std::int64_t random_seed() {
  std::uint64_t bits = 0;
  // At most 256 bytes never come back short, but a signal may interrupt the wait for the first entropy after boot.
  while (getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits))
    if (errno != EINTR)
      throw Error(ErrorKind::runtime, fmt::format("the system gives no random bytes: {}", std::strerror(errno)),
                  "give a seed with --seed");
  return static_cast<std::int64_t>(bits >> 11);
}

}  // namespace outrider
