// Work on data that lies in order: one contiguous share of the indices per thread, so that each thread reads one long
// stream, and what is left of slower threads' shares for those that are done.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace outrider {

class Shares {
 public:
  explicit Shares(int threads);

  // Deals [0, count), 0 <= count < 2^31; thread t's share is [begin(t), begin(t + 1)). By one thread, while nobody
  // takes.
  void deal(std::int64_t count);
  std::int64_t begin(int thread) const;
  // The next index of the thread's own share; after it the last one of the largest share. Any thread may take at any
  // time; at most `count` takes after a deal (a further one would never return).
  std::int64_t take(int thread);

 private:
  // What is left of a share, [next, end), as next << 32 | end.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> left{0};
  };
  std::int64_t count_ = 0;
  std::vector<Share> shares_;
};

}  // namespace outrider
