#include "engine/machine.h"

#include <algorithm>
#include <chrono>

#include "base/cpu_count.h"
#include "engine/engine.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // one task: far above a page, enough tasks to balance
constexpr std::size_t kPieceWords = kPieceBytes / sizeof(std::uint64_t);
// Multiply-adds of one task: some 0.1 ms, so that handing out tasks costs nothing and a late thread costs little.
constexpr std::int64_t kTaskMacs = std::int64_t{8} << 20;
constexpr std::int64_t kTasksPerThread = 8;

// Work per second of the best pass within `seconds`; at least one pass.
template <class Pass>
double best_rate(double work, double seconds, const Pass& pass) {
  double best = 0, spent = 0;
  do {
    const auto begin = Clock::now();
    pass();
    const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
    spent += taken;
    best = std::max(best, work / taken);
  } while (spent < seconds);
  return best;
}

}  // namespace

MachineProbe::MachineProbe(Device& device, std::size_t buffer_bytes)
    : device_(device),
      pieces_(static_cast<std::int64_t>(buffer_bytes / kPieceBytes)),
      buffer_(static_cast<std::size_t>(pieces_) * kPieceBytes, MemoryPart::fixed),
      sums_(static_cast<std::size_t>(pieces_)) {
  // Written once: an untouched mapping reads the same zero page over and over.
  const std::span<std::uint64_t> words = buffer_.as<std::uint64_t>();
  device_.parallel_for(pieces_, [&](std::int64_t piece) {
    std::fill_n(words.data() + static_cast<std::size_t>(piece) * kPieceWords, kPieceWords,
                static_cast<std::uint64_t>(piece));
  });
}

double MachineProbe::read_gb_per_s(double seconds) {
  if (pieces_ == 0) return 0;
  const std::span<const std::uint64_t> words = std::as_const(buffer_).as<std::uint64_t>();
  const Isa isa = kernels().isa;
  const double rate = best_rate(static_cast<double>(buffer_.size()), seconds, [&] {
    device_.parallel_for(pieces_, [&](std::int64_t piece) {
      const auto at = static_cast<std::size_t>(piece);
      sums_[at] = read_sum(isa, words.data() + at * kPieceWords, kPieceBytes);
    });
  });
  for (std::size_t piece = 0; piece < sums_.size(); ++piece) OUTRIDER_CHECK(sums_[piece] == piece * kPieceWords);
  return rate / 1e9;
}

double MachineProbe::gmac_per_s(PeakKind kind, double seconds) {
  const PeakLoop loop = peak_loop(kernels().isa, kind);
  const std::int64_t rounds = std::max<std::int64_t>(1, kTaskMacs / loop.macs_per_round);
  const std::int64_t tasks = device_.threads() * kTasksPerThread;
  const double macs = static_cast<double>(tasks * rounds * loop.macs_per_round);
  return best_rate(macs, seconds, [&] { device_.parallel_for(tasks, [&](std::int64_t) { loop.run(rounds); }); }) / 1e9;
}

MachineLimits MachineProbe::measure(double seconds) {
  MachineLimits limits;
  limits.read_gb_per_s = read_gb_per_s(seconds);
  limits.f32_gmac_per_s = gmac_per_s(PeakKind::f32, seconds);
  limits.i16_gmac_per_s = gmac_per_s(PeakKind::i16, seconds);
  limits.i8_gmac_per_s = gmac_per_s(PeakKind::i8, seconds);
  return limits;
}

std::size_t probe_bytes() { return std::max(std::size_t{256} << 20, 4 * last_cache_bytes(CpuFiles{})); }

double measure_read_bandwidth(int threads, std::size_t buffer_bytes) {
  if (buffer_bytes < kPieceBytes) return 0;
  constexpr double kSeconds = 0.2;
  const auto device = make_cpu_device(threads);
  return MachineProbe(*device, buffer_bytes).read_gb_per_s(kSeconds);
}

}  // namespace outrider
