// The worker pool: one parallel loop at a time, tasks handed out by an atomic counter, one barrier at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace outrider {

// `threads` threads in all, the caller of run() among them; the others are owned, named and joined here. Workers spin
// briefly for the next loop, then park, so that an idle pool burns no CPU. Every thread gets the floating-point
// environment of numerics.md section 1 (set_float_environment); a worker CHECKs it at its first claim of a loop. Not
// reentrant: run() from one thread at a time.
class WorkerPool {
 public:
  // threads >= 1; 0 means default_threads().
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const;
  // Calls task(index, thread) for every index in [0, tasks), thread in [0, threads()), and returns when all are done.
  // `task` must not throw. Which thread runs which index is not defined.
  void run(std::int64_t tasks, const std::function<void(std::int64_t index, int thread)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Physical cores this process may run on (affinity mask, cgroup quota), at least 1.
int default_threads();

// MXCSR = 0x1F80 on x86, FPCR = 0 on ARM: round half to even, no flush to zero. check_* CHECKs it. enter_* is for the
// start of a step: sets it when the calling thread enters for the first time and CHECKs it from then on.
void set_float_environment();
void check_float_environment();
void enter_float_environment();

}  // namespace outrider
