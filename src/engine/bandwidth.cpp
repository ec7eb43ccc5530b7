// Sequential read bandwidth, measured in the run that it is compared with (the machine's speed varies by the hour).
#include <algorithm>
#include <chrono>
#include <vector>

#include "base/memory.h"
#include "base/worker_pool.h"
#include "engine/engine.h"

namespace outrider {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // one task: far above a page, enough tasks to balance
constexpr double kSeconds = 0.2;

// Sums in independent integer lanes: the compiler turns them into plain vector loads and adds, which memory outpaces.
std::uint64_t sum_of(const std::uint64_t* words, std::size_t count) {
  std::uint64_t lanes[16] = {};
  for (std::size_t i = 0; i + 16 <= count; i += 16)
    for (std::size_t l = 0; l < 16; ++l) lanes[l] += words[i + l];
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum;
}

}  // namespace

double measure_read_bandwidth(int threads, std::size_t buffer_bytes) {
  using Clock = std::chrono::steady_clock;
  const auto pieces = static_cast<std::int64_t>(buffer_bytes / kPieceBytes);
  if (pieces == 0) return 0;
  AlignedBuffer buffer(static_cast<std::size_t>(pieces) * kPieceBytes, MemoryPart::fixed);
  WorkerPool pool(threads);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(pieces));
  constexpr std::size_t kWords = kPieceBytes / sizeof(std::uint64_t);
  const std::span<std::uint64_t> words = buffer.as<std::uint64_t>();
  // Written once: an untouched mapping reads the same zero page over and over.
  pool.run(pieces, [&](std::int64_t piece, int) {
    std::fill_n(words.data() + static_cast<std::size_t>(piece) * kWords, kWords, static_cast<std::uint64_t>(piece));
  });
  double best = 0, spent = 0;
  std::uint64_t check = 0;
  while (spent < kSeconds) {
    const auto begin = Clock::now();
    pool.run(pieces, [&](std::int64_t piece, int) {
      sums[static_cast<std::size_t>(piece)] = sum_of(words.data() + static_cast<std::size_t>(piece) * kWords, kWords);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    for (const std::uint64_t sum : sums) check += sum;
    spent += seconds;
    best = std::max(best, static_cast<double>(buffer.size()) / seconds / 1e9);
  }
  OUTRIDER_CHECK(check % kWords == 0);  // every word of a piece is its number
  return best;
}

}  // namespace outrider
