#include "kernels/peaks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

namespace outrider {
namespace {

constexpr PeakKind kKinds[] = {PeakKind::f32, PeakKind::i16, PeakKind::i8};

std::vector<Isa> present() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::amx, Isa::neon})
    if (kernel_table(isa) != nullptr) isas.push_back(isa);
  return isas;
}

double seconds_of(const PeakLoop& loop, std::int64_t rounds) {
  const auto begin = std::chrono::steady_clock::now();
  loop.run(rounds);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A loop that the compiler folds, or that runs another number of rounds, would set a limit that nothing can reach.
TEST(Peaks, TakeTimeInProportionToTheirRoundsOnEveryTable) {
  for (const Isa isa : present())
    for (const PeakKind kind : kKinds) {
      const PeakLoop loop = peak_loop(isa, kind);
      ASSERT_GT(loop.macs_per_round, 0);
      constexpr std::int64_t kFew = 2'000, kTimes = 16;
      double few = 1e9, many = 1e9;  // the best of some: a disturbed run says nothing
      for (int i = 0; i < 25; ++i) {
        few = std::min(few, seconds_of(loop, kFew));
        many = std::min(many, seconds_of(loop, kFew * kTimes));
      }
      EXPECT_GT(many, few * kTimes * 0.5) << name_of(isa) << " " << loop.instructions;
      EXPECT_LT(many, few * kTimes * 2) << name_of(isa) << " " << loop.instructions;
      // No core does 2,000 multiply-adds per nanosecond; a tile unit does about 1,000.
      EXPECT_LT(static_cast<double>(kFew * kTimes * loop.macs_per_round) / many / 1e9, 10'000);
    }
}

TEST(Peaks, ReadEveryWordOnceOnEveryTable) {
  std::vector<std::uint64_t> words(4096 / 8 * 3);
  std::iota(words.begin(), words.end(), std::uint64_t{1} << 40);
  const std::uint64_t sum = std::accumulate(words.begin(), words.end(), std::uint64_t{0});
  for (const Isa isa : present()) EXPECT_EQ(read_sum(isa, words.data(), words.size() * 8), sum) << name_of(isa);
}

}  // namespace
}  // namespace outrider
