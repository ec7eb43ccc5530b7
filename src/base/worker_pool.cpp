#include "base/worker_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace outrider {
namespace {

using Task = std::function<void(std::int64_t, int)>;

// Loops of a decode step follow each other within a few microseconds, steps within some tens: this long a worker stays
// hot. Longer would burn a core between the tokens of a slow reader.
constexpr auto kSpin = std::chrono::microseconds(50);
// For this long a waiting thread only pauses; after it, it also yields, because then a thread that it waits for may be
// queued on its core.
constexpr auto kPauseOnly = std::chrono::microseconds(10);
// Pauses between two looks at the clock (a pause is 10 to 140 cycles, a look about 25 ns).
constexpr int kPausesPerLook = 16;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word, int threads) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// Returns true as soon as ready() holds, false after kSpin. Between two looks: idle().
template <class Ready, class Idle>
bool spin_until(Ready ready, Idle idle) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      idle();
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited > kSpin) return ready();
    if (waited > kPauseOnly) sched_yield();
  }
}

// Lines a waiting thread asks for between two looks: few enough that it sees the end of its wait within a microsecond.
constexpr std::size_t kFetchLines = 8;
constexpr std::size_t kLine = 64;

#if defined(__x86_64__)
constexpr std::uint32_t kControl = 0x1F80;      // all exceptions masked, half to even, no FTZ, no DAZ
constexpr std::uint32_t kStickyFlags = 0x003F;  // set by ordinary arithmetic
bool float_environment_holds() { return (_mm_getcsr() & ~kStickyFlags) == kControl; }
#elif defined(__aarch64__)
bool float_environment_holds() {
  std::uint64_t fpcr = 0;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  return fpcr == 0;
}
#else
#error "set_float_environment: no floating-point control register known for this processor"
#endif

}  // namespace

void set_float_environment() {
#if defined(__x86_64__)
  _mm_setcsr(kControl);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(std::uint64_t{0}));
#endif
}

void enter_float_environment() {
  thread_local bool entered = false;
  if (entered) return check_float_environment();
  set_float_environment();
  entered = true;
}

void check_float_environment() {
  OUTRIDER_CHECK(float_environment_holds(), "this thread does not round half to even with subnormals kept");
}

// A loop is open while `remaining` > 0. A claim is one fetch_sub that saw a positive value: it makes its holder
// responsible for one index, so the fields of the loop stay valid until that index is reported in `finished`. A thread
// that comes late either claims an index of the loop then open or gets nothing; nobody waits for threads, only for
// claimed indices.
struct WorkerPool::Impl {
  // The hint of read_ahead() for one thread. The caller may write it while the thread reads: the worst is a useless
  // fetch.
  struct alignas(64) Hint {
    std::atomic<const std::byte*> start{nullptr};
    std::atomic<std::size_t> bytes{0};
    const std::byte* seen = nullptr;  // the thread's own: the hint it fetches, and how far it got
    std::size_t fetched = 0;
  };

  alignas(64) std::atomic<std::int64_t> remaining{0};
  alignas(64) std::atomic<std::int64_t> finished{0};
  std::atomic<std::uint32_t> caller_parked{0};
  alignas(64) std::atomic<std::uint32_t> epoch{0};  // grows with every loop; parked workers wait on it
  std::atomic<std::uint32_t> parked{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> running{false};
  const Task* task = nullptr;  // written only while no loop is open and every claim is reported
  std::int64_t tasks = 0;
  std::vector<Hint> hints;  // one per thread
  std::vector<CpuSet> places;
  std::vector<std::jthread> workers;

  Impl(int threads, std::vector<CpuSet> cpus) : hints(static_cast<std::size_t>(threads)), places(std::move(cpus)) {
    workers.reserve(static_cast<std::size_t>(threads - 1));
    try {
      for (int thread = 1; thread < threads; ++thread) workers.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error& error) {
      const std::size_t started = workers.size() + 1;
      stop_workers();
      throw Error(ErrorKind::runtime,
                  fmt::format("the system started {} of {} threads: {}", started, threads, error.what()),
                  "lower --threads");
    } catch (...) {  // out of memory: the started threads would be joined without being told to stop
      stop_workers();
      throw;
    }
  }
  ~Impl() { stop_workers(); }

  void stop_workers() {
    stop = true;
    epoch.fetch_add(1);
    futex_wake(epoch, INT_MAX);
    workers.clear();  // joins
  }

  // Claims and runs indices until none is left, then reports them all at once.
  void claim_and_run(int thread) noexcept {
    std::int64_t done = 0;
    std::int64_t total = 0;
    for (;;) {
      const std::int64_t left = remaining.fetch_sub(1, std::memory_order_acq_rel);
      if (left <= 0) break;
      if (done == 0) check_float_environment();
      total = tasks;
      (*task)(total - left, thread);
      ++done;
    }
    if (done == 0) return;
    // From here on the caller may return and open the next loop: only atomics may be touched.
    if (finished.fetch_add(done) + done == total && caller_parked.load() != 0) {
      caller_parked = 0;
      futex_wake(caller_parked, 1);
    }
  }

  // What a waiting thread does between two looks.
  void fetch_or_pause(int thread) noexcept {
    Hint& own = hints[static_cast<std::size_t>(thread)];
    if (const std::byte* start = own.start.load(std::memory_order_relaxed); own.seen != start) {
      own.seen = start;
      own.fetched = 0;
    }
    if (own.seen == nullptr || own.fetched >= own.bytes.load(std::memory_order_relaxed)) return pause();
    // The sum is formed on integers: the memory may be gone, and a pointer must not leave its array.
    const std::uintptr_t next = reinterpret_cast<std::uintptr_t>(own.seen) + own.fetched;
    for (std::size_t line = 0; line < kFetchLines; ++line)
      __builtin_prefetch(reinterpret_cast<const void*>(next + line * kLine), 0, 2);
    own.fetched += kFetchLines * kLine;
  }

  void work(int thread) noexcept {
    pthread_setname_np(pthread_self(), fmt::format("outrider-{}", thread).c_str());
    if (!places.empty()) pin_this_thread(places[static_cast<std::size_t>(thread)]);
    set_float_environment();
    std::uint32_t seen = 0;
    while (!stop.load(std::memory_order_acquire)) {
      seen = epoch.load(std::memory_order_acquire);
      claim_and_run(thread);
      if (stop.load(std::memory_order_acquire)) return;
      if (spin_until([&] { return epoch.load(std::memory_order_acquire) != seen; }, [&] { fetch_or_pause(thread); }))
        continue;
      parked.fetch_add(1);
      while (epoch.load() == seen) futex_wait(epoch, seen);
      parked.fetch_sub(1);
    }
  }

  void wait_for_finish() {
    const auto all_finished = [this] { return finished.load(std::memory_order_acquire) == tasks; };
    if (spin_until(all_finished, [this] { fetch_or_pause(0); })) return;
    for (;;) {
      caller_parked = 1;
      if (finished.load() == tasks) break;
      futex_wait(caller_parked, 1);
    }
    caller_parked = 0;
  }
};

// The tasks waited for are claimed and short: parking would cost more than they take.
void StageGate::wait_longer() const {
  const auto arrived = [this] { return missing_.load(std::memory_order_acquire) <= 0; };
  while (!spin_until(arrived, pause)) sched_yield();
}

WorkerPool::WorkerPool(int threads)
    : WorkerPool(threads, place_threads(CpuFiles{}, allowed_cpus(), threads == 0 ? default_threads() : threads,
                                        pinning_from(std::getenv("OUTRIDER_PIN")))) {}

WorkerPool::WorkerPool(int threads, std::vector<CpuSet> places) {
  OUTRIDER_CHECK(threads >= 0, "{} threads", threads);
  const int count = threads == 0 ? default_threads() : threads;
  OUTRIDER_CHECK(places.empty() || static_cast<int>(places.size()) == count, "{} places for {} threads", places.size(),
                 count);
  impl_ = std::make_unique<Impl>(count, std::move(places));
}

WorkerPool::~WorkerPool() = default;

int WorkerPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void WorkerPool::read_ahead(std::span<const std::byte* const> starts, std::size_t bytes) {
  OUTRIDER_CHECK(starts.size() == impl_->hints.size(), "{} addresses for {} threads", starts.size(), threads());
  for (std::size_t t = 0; t < starts.size(); ++t) {
    impl_->hints[t].bytes.store(starts[t] == nullptr ? 0 : bytes, std::memory_order_relaxed);
    impl_->hints[t].start.store(starts[t], std::memory_order_relaxed);
  }
}

void WorkerPool::run(std::int64_t tasks, const Task& task) {
  OUTRIDER_CHECK(tasks >= 0, "{} tasks", tasks);
  Impl& pool = *impl_;
  OUTRIDER_CHECK(!pool.running.exchange(true, std::memory_order_acquire), "run() inside run() of the same pool");
  if (!float_environment_holds()) set_float_environment();
  if (pool.workers.empty() || tasks <= 1) {
    [&]() noexcept {
      for (std::int64_t index = 0; index < tasks; ++index) task(index, 0);
    }();
  } else {
    pool.task = &task;
    pool.tasks = tasks;
    pool.finished.store(0, std::memory_order_relaxed);
    pool.remaining.store(tasks, std::memory_order_release);
    pool.epoch.fetch_add(1);
    if (pool.parked.load() > 0) futex_wake(pool.epoch, static_cast<int>(std::min<std::int64_t>(tasks - 1, INT_MAX)));
    pool.claim_and_run(0);
    pool.wait_for_finish();
  }
  pool.running.store(false, std::memory_order_release);
}

}  // namespace outrider
