#include "base/worker_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/cpu_placement.h"
#include "base/error.h"
#include "base/failure_injection.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

double process_cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

TEST(WorkerPool, RunsEveryIndexExactlyOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t tasks : {0, 1, 2, 3, 6, 7, 8, 64, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(tasks));
      pool.run(tasks, [&](std::int64_t index, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        ++hits[static_cast<std::size_t>(index)];
      });
      for (const auto& hit : hits) ASSERT_EQ(hit, 1) << threads << " threads, " << tasks << " tasks";
    }
  }
}

TEST(WorkerPool, ReadsAheadWithoutNeedingTheMemory) {
  WorkerPool pool(3);
  std::vector<std::byte> here(4096);
  const auto* const nowhere = reinterpret_cast<const std::byte*>(std::uintptr_t{64});
  for (int loop = 0; loop < 100; ++loop) {
    const std::array<const std::byte*, 3> starts = {here.data(), nullptr, nowhere};
    pool.read_ahead(starts, std::size_t{1} << 20);
    std::atomic<int> done{0};
    pool.run(8, [&](std::int64_t, int) { ++done; });
    ASSERT_EQ(done, 8);
  }
  EXPECT_DEATH(pool.read_ahead({}, 1), "0 addresses for 3 threads");
}

TEST(WorkerPool, GivesEachThreadIndexToOneThreadOnly) {
  WorkerPool pool(4);
  std::mutex mutex;
  std::vector<std::set<std::thread::id>> ids(4);
  for (int loop = 0; loop < 50; ++loop)
    pool.run(16, [&](std::int64_t, int thread) {
      std::this_thread::sleep_for(20us);
      const std::lock_guard lock(mutex);
      ids[static_cast<std::size_t>(thread)].insert(std::this_thread::get_id());
    });
  EXPECT_EQ(ids[0], std::set{std::this_thread::get_id()});
  std::set<std::thread::id> all;
  for (const auto& of_index : ids) {
    EXPECT_LE(of_index.size(), 1u);
    all.insert(of_index.begin(), of_index.end());
  }
  EXPECT_EQ(all.size(), 4u);  // 16 sleeping tasks leave every worker time to wake and join in
}

TEST(WorkerPool, MakesPlainWritesVisibleFromLoopToLoop) {
  // Under ThreadSanitizer this is the test of every memory order: no atomics in the tasks.
  WorkerPool pool(3);
  std::vector<std::int64_t> values(97, 0);
  std::vector<std::int64_t> next(97, 0);
  constexpr int kLoops = 2000;
  for (int loop = 0; loop < kLoops; ++loop) {
    pool.run(97, [&](std::int64_t index, int) {
      next[static_cast<std::size_t>(index)] = values[static_cast<std::size_t>((index + 1) % 97)] + 1;
    });
    values.swap(next);
  }
  for (const std::int64_t value : values) ASSERT_EQ(value, kLoops);
}

TEST(WorkerPool, RunsOnTheCallerAloneWithOneThread) {
  WorkerPool pool(1);
  std::int64_t sum = 0;
  pool.run(100, [&](std::int64_t index, int thread) {
    EXPECT_EQ(thread, 0);
    sum += index;
  });
  EXPECT_EQ(sum, 4950);
}

TEST(WorkerPool, WorksAfterItsWorkersHaveParked) {
  WorkerPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(1ms);  // beyond the spin
    std::atomic<std::int64_t> sum = 0;
    pool.run(100, [&](std::int64_t index, int) { sum += index; });
    ASSERT_EQ(sum, 4950);
  }
}

TEST(WorkerPool, BurnsNoCpuWhenIdle) {
  WorkerPool pool(4);
  pool.run(64, [](std::int64_t, int) { std::this_thread::sleep_for(10us); });
  std::this_thread::sleep_for(20ms);  // spins end
  const double before = process_cpu_ms();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(process_cpu_ms() - before, 3.0);  // of 300; one spinning worker would burn 300
}

TEST(WorkerPool, WaitsForClaimedTasksOnlyWhenThreadsShareACore) {
  // All threads on one core: workers that are not scheduled must not hold up the loop. Waiting for each of 7 workers to
  // pass by would cost scheduler slices of milliseconds per loop.
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  double mean_us = 0;
  {
    WorkerPool pool(8);  // workers inherit the mask
    std::atomic<std::int64_t> sum = 0;
    constexpr int kLoops = 500;
    const auto start = Clock::now();
    for (int loop = 0; loop < kLoops; ++loop) pool.run(16, [&](std::int64_t index, int) { sum += index; });
    mean_us = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kLoops;
    EXPECT_EQ(sum, 120 * kLoops);
  }
  sched_setaffinity(0, sizeof all, &all);
  RecordProperty("mean_us", std::to_string(mean_us));
  EXPECT_LT(mean_us, 1000);
}

// Calls `body` while another thread of this process burns cpu `cpu`.
template <class Body>
void beside_a_busy_core(int cpu, Body&& body) {
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    pin_this_thread(std::vector{cpu});
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  body();
  stop = true;
  busy.join();
}

TEST(WorkerPool, KeepsMostOfItsPaceWhenACoreIsTakenAway) {
  const std::vector<int> cpus = allowed_cpus();
  if (default_threads() < 2) GTEST_SKIP() << "one core cannot lose one";
  WorkerPool pool(0);
  // Loops of small tasks, as the operations of a step are: static shares would wait for the slow core in each.
  const auto loops_ms = [&] {
    const auto start = Clock::now();
    for (int loop = 0; loop < 200; ++loop)
      pool.run(32, [](std::int64_t, int) {
        const auto until = Clock::now() + 20us;
        while (Clock::now() < until) {
        }
      });
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  loops_ms();
  const double alone = loops_ms();
  double beside = 0;
  beside_a_busy_core(cpus.back(), [&] { beside = loops_ms(); });
  RecordProperty("alone_ms", std::to_string(alone));
  RecordProperty("beside_ms", std::to_string(beside));
  // With two cores a fair share is 1.5 of them; a loop that hung on the taken core would cost slices of milliseconds.
  EXPECT_LT(beside, 6 * alone + 100);
}

TEST(WorkerPool, RunsOnWhenTheAffinityMaskChanges) {
  const std::vector<int> before = allowed_cpus();
  WorkerPool pool(3);
  std::thread([&] {
    for (const int cpu : {before.front(), before.back()}) {
      pin_this_thread(std::vector{cpu});
      std::atomic<std::int64_t> sum = 0;
      for (int loop = 0; loop < 50; ++loop) pool.run(16, [&](std::int64_t index, int) { sum += index; });
      EXPECT_EQ(sum, 120 * 50);
    }
  }).join();
}

TEST(WorkerPool, KeepsItsWorkersButNotItsCallerOnTheirPlaces) {
  const std::vector<int> all = allowed_cpus();
  WorkerPool pool(3, {{all.front()}, {all.back()}, {all.front()}});
  std::mutex mutex;
  std::vector<std::vector<int>> seen(3);
  for (int loop = 0; loop < 20; ++loop)
    pool.run(12, [&](std::int64_t, int thread) {
      std::this_thread::sleep_for(50us);
      const std::lock_guard lock(mutex);
      seen[static_cast<std::size_t>(thread)] = allowed_cpus();
    });
  EXPECT_EQ(seen, (std::vector<std::vector<int>>{all, {all.back()}, {all.front()}}));
}

TEST(WorkerPool, RefusesAnUnknownWayToPin) {
  setenv("OUTRIDER_PIN", "sometimes", 1);
  EXPECT_THROW(WorkerPool(2), Error);
  setenv("OUTRIDER_PIN", "on", 1);
  std::atomic<std::int64_t> sum = 0;
  {
    WorkerPool pool(0);
    pool.run(16, [&](std::int64_t index, int) { sum += index; });
  }
  unsetenv("OUTRIDER_PIN");
  EXPECT_EQ(sum, 120);
}

TEST(StageGate, LetsNoTaskOfTheSecondStageStartBeforeTheFirstIsDone) {
  // Plain writes of the first stage, read by the second: ThreadSanitizer checks the gate's order too.
  for (const int threads : {1, 2, 3, 7}) {
    WorkerPool pool(threads);
    for (int loop = 0; loop < 200; ++loop) {
      constexpr std::int64_t kFirst = 5;
      std::vector<std::int64_t> made(kFirst, 0);
      std::vector<std::int64_t> seen(11, 0);
      StageGate gate(kFirst);
      pool.run(kFirst + 11, [&](std::int64_t index, int) {
        if (index < kFirst) {
          made[static_cast<std::size_t>(index)] = index + 1;
          gate.arrive();
          return;
        }
        gate.wait();
        for (const std::int64_t value : made) seen[static_cast<std::size_t>(index - kFirst)] += value;
      });
      ASSERT_EQ(seen, std::vector<std::int64_t>(11, 15)) << threads << " threads";
    }
  }
}

TEST(WorkerPool, StopsWhileWorkersAreStillStarting) {
  for (int i = 0; i < 50; ++i) WorkerPool pool(3);
}

// Threads that have been started are stopped and joined when a later one cannot be.
TEST(WorkerPool, AnAllocationThatFailsWhileStartingLeavesNoThreadBehind) {
  if (!kHeapIsCounted) GTEST_SKIP() << "this build does not count the heap";
  const std::int64_t failed = for_every_failure([](FailurePlan& plan) { plan.run([] { WorkerPool pool(4, {}); }); });
  EXPECT_GE(failed, 4);  // the pool itself and each thread
}

#if defined(__x86_64__)
TEST(WorkerPoolDeath, AWorkerChecksTheFloatEnvironmentWhenItClaims) {
  EXPECT_DEATH(
      {
        WorkerPool pool(2);
        for (int loop = 0; loop < 100; ++loop)
          pool.run(8, [](std::int64_t, int thread) {
            std::this_thread::sleep_for(1ms);
            if (thread == 1) _mm_setcsr(0x1F80 | 0x8000);
          });
      },
      "subnormals");
}

TEST(FloatEnvironment, IsSetWhenAThreadFirstEntersAndCheckedAfterwards) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(0x1F80 | 0x8040);  // inherited by the thread
  std::thread([] {
    enter_float_environment();
    EXPECT_EQ(_mm_getcsr() & ~0x3Fu, 0x1F80u);
  }).join();
  _mm_setcsr(saved);
  enter_float_environment();
  enter_float_environment();
  EXPECT_DEATH(
      {
        _mm_setcsr(0x1F80 | 0x8000);
        enter_float_environment();
      },
      "subnormals");
}

TEST(WorkerPool, GivesEveryThreadTheFloatEnvironmentWhateverTheCreatorHad) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(0x1F80 | 0x8040 | 0x6000);  // flush to zero, subnormals are zero, toward zero; inherited by new threads
  {
    WorkerPool pool(3);
    std::mutex mutex;
    std::set<unsigned> seen;
    std::set<int> threads;
    for (int loop = 0; loop < 20; ++loop)
      pool.run(12, [&](std::int64_t, int thread) {
        std::this_thread::sleep_for(50us);
        const std::lock_guard lock(mutex);
        seen.insert(_mm_getcsr() & ~0x3Fu);
        threads.insert(thread);
      });
    EXPECT_EQ(seen, std::set<unsigned>{0x1F80});
    EXPECT_EQ(threads.size(), 3u);
  }
  _mm_setcsr(saved);
}

TEST(FloatEnvironment, IsCheckedWithoutMindingStickyFlags) {
  set_float_environment();
  std::feraiseexcept(FE_INEXACT | FE_UNDERFLOW | FE_DIVBYZERO);
  check_float_environment();
  EXPECT_DEATH(
      {
        _mm_setcsr(0x1F80 | 0x8000);
        check_float_environment();
      },
      "subnormals");
  EXPECT_DEATH(
      {
        _mm_setcsr(0x1F80 | 0x2000);
        check_float_environment();
      },
      "half to even");
}
#endif

TEST(WorkerPoolDeath, RunIsNotReentrant) {
  EXPECT_DEATH(
      {
        WorkerPool pool(1);
        pool.run(1, [&](std::int64_t, int) { pool.run(1, [](std::int64_t, int) {}); });
      },
      "inside run");
}

TEST(DefaultThreads, IsAtLeastOneAndAtMostTheAffinityMask) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_GE(default_threads(), 1);
  EXPECT_LE(default_threads(), CPU_COUNT(&mask));
  EXPECT_EQ(WorkerPool(0).threads(), default_threads());
}

}  // namespace
}  // namespace outrider
