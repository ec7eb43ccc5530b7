#include "base/shares.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace outrider {
namespace {

TEST(Shares, AThreadWalksItsOwnShareInOrder) {
  Shares shares(3);
  shares.deal(10);
  EXPECT_EQ(shares.begin(0), 0);
  EXPECT_EQ(shares.begin(1), 3);
  EXPECT_EQ(shares.begin(2), 6);
  EXPECT_EQ(shares.begin(3), 10);
  for (const std::int64_t expected : {3, 4, 5}) EXPECT_EQ(shares.take(1), expected);
}

TEST(Shares, WhoIsDoneTakesTheEndOfTheLargestShare) {
  Shares shares(3);
  shares.deal(10);  // 0..2, 3..5, 6..9
  for (int i = 0; i < 3; ++i) shares.take(0);
  for (const std::int64_t expected : {9, 5, 8, 4, 7, 3, 6}) EXPECT_EQ(shares.take(0), expected);
}

TEST(Shares, EveryIndexIsTakenOnceWhateverTheThreads) {
  for (const int threads : {1, 2, 7})
    for (const std::int64_t count : {0, 1, 3, 7, 64, 5000}) {
      Shares shares(threads);
      for (int deals = 0; deals < 2; ++deals) {
        shares.deal(count);
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
        std::atomic<std::int64_t> tickets = count;
        std::vector<std::jthread> workers;
        for (int t = 0; t < threads; ++t)
          workers.emplace_back([&, t] {
            while (tickets.fetch_sub(1) > 0) ++hits[static_cast<std::size_t>(shares.take(t))];
          });
        workers.clear();
        for (const auto& hit : hits) ASSERT_EQ(hit, 1) << threads << " threads, " << count << " indices";
      }
    }
}

}  // namespace
}  // namespace outrider
