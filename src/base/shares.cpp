#include "base/shares.h"

#include <limits>

#include "base/error.h"

namespace outrider {
namespace {

constexpr std::uint64_t kLow = 0xffffffffU;

std::uint64_t pack(std::uint64_t next, std::uint64_t end) { return next << 32 | end; }
std::int64_t size_of(std::uint64_t left) {
  return static_cast<std::int64_t>(left & kLow) - static_cast<std::int64_t>(left >> 32);
}

}  // namespace

Shares::Shares(int threads) : shares_(static_cast<std::size_t>(threads)) {
  OUTRIDER_CHECK(threads >= 1, "{} threads", threads);
}

std::int64_t Shares::begin(int thread) const { return thread * count_ / static_cast<std::int64_t>(shares_.size()); }

void Shares::deal(std::int64_t count) {
  OUTRIDER_CHECK(count >= 0 && count <= std::numeric_limits<std::int32_t>::max(), "{} indices", count);
  count_ = count;
  for (std::size_t t = 0; t < shares_.size(); ++t) {
    const int thread = static_cast<int>(t);
    shares_[t].left.store(
        pack(static_cast<std::uint64_t>(begin(thread)), static_cast<std::uint64_t>(begin(thread + 1))),
        std::memory_order_relaxed);
  }
}

std::int64_t Shares::take(int thread) {
  std::atomic<std::uint64_t>& own = shares_[static_cast<std::size_t>(thread)].left;
  std::uint64_t left = own.load(std::memory_order_relaxed);
  while (size_of(left) > 0)
    if (own.compare_exchange_weak(left, left + pack(1, 0), std::memory_order_relaxed))
      return static_cast<std::int64_t>(left >> 32);
  for (;;) {
    std::atomic<std::uint64_t>* largest = &own;
    std::uint64_t seen = 0;
    for (Share& share : shares_)
      if (const std::uint64_t now = share.left.load(std::memory_order_relaxed); size_of(now) > size_of(seen)) {
        largest = &share.left;
        seen = now;
      }
    if (size_of(seen) > 0 && largest->compare_exchange_strong(seen, seen - 1, std::memory_order_relaxed))
      return static_cast<std::int64_t>(seen & kLow) - 1;
  }
}

}  // namespace outrider
