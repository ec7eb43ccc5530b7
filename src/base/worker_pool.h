// The worker pool: one parallel loop at a time, tasks handed out by an atomic counter, one barrier at the end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/cpu_placement.h"

namespace outrider {

// `threads` threads in all, the caller of run() among them; the others are owned, named and joined here. Workers spin
// briefly for the next loop, then park, so that an idle pool burns no CPU. Every thread gets the floating-point
// environment of numerics.md section 1 (set_float_environment); a worker CHECKs it at its first claim of a loop.
// Workers may be pinned (place_threads(), OUTRIDER_PIN); the caller, who is not the pool's, never is. Not reentrant:
// run() from one thread at a time.
class WorkerPool {
 public:
  // threads >= 1; 0 means default_threads(). Placed by place_threads() for this machine.
  explicit WorkerPool(int threads);
  // `places`: the cpus of each thread, of which the workers' are used; empty: anywhere.
  WorkerPool(int threads, std::vector<CpuSet> places);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const;
  // What the threads will read next, `bytes` from one address per thread (null: nothing): a thread that waits, for the
  // end of a loop or for the next one, fetches its part into its cache. From the thread that calls run(). A hint only:
  // nothing is read, so the memory need not be there any more.
  void read_ahead(std::span<const std::byte* const> starts, std::size_t bytes);
  // Calls task(index, thread) for every index in [0, tasks), thread in [0, threads()), and returns when all are done.
  // `task` must not throw. Which thread runs which index is not defined.
  void run(std::int64_t tasks, const std::function<void(std::int64_t index, int thread)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Two stages in one loop, without a barrier between them: the tasks of the first stage have the lowest indices and
// arrive(), those of the second wait() for all of them. Indices are claimed in ascending order, so a waiting task waits
// only for tasks that a thread is running; writes before arrive() are visible after wait().
class StageGate {
 public:
  explicit StageGate(std::int64_t tasks) : missing_(tasks) {}
  void arrive() { missing_.fetch_sub(1, std::memory_order_acq_rel); }
  void wait() const {
    if (missing_.load(std::memory_order_acquire) > 0) wait_longer();
  }

 private:
  void wait_longer() const;
  std::atomic<std::int64_t> missing_;
};

// Physical cores this process may run on (affinity mask, cgroup quota), at least 1.
int default_threads();

// MXCSR = 0x1F80 on x86, FPCR = 0 on ARM: round half to even, no flush to zero. check_* CHECKs it. enter_* is for the
// start of a step: sets it when the calling thread enters for the first time and CHECKs it from then on.
void set_float_environment();
void check_float_environment();
void enter_float_environment();

}  // namespace outrider
