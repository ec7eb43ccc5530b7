// Which core each thread of a pool stays on, and over which memory nodes its data is spread.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/cpu_count.h"

namespace outrider {

// The logical cpus of one physical core: the second one is where the system moves a thread that is pushed aside.
using CpuSet = std::vector<int>;

// automatic: pin where a machine has several memory nodes. On one node the scheduler moves a worker away from a core
// that another process takes, which is worth more than a warm cache: weights stream by, nothing is kept.
enum class Pinning { automatic, on, off };

// OUTRIDER_PIN: auto (also when unset), on, off. Error (usage) for anything else.
Pinning pinning_from(const char* value);

// The cores behind these logical cpus, in ascending order of their first cpu.
std::vector<CpuSet> cores_of(const CpuFiles& files, std::span<const int> cpus);

// Memory nodes that hold one of these cpus, ascending; one node 0 where the system has no such files.
std::vector<int> memory_nodes(const CpuFiles& files, std::span<const int> cpus);

// One set per thread, distinct cores; that of thread 0, the caller, is what the others leave free. Empty: leave all to
// the scheduler. Only a pool with one thread for every core of the mask is pinned: beside idle cores pinned workers
// would stay on a core that another pool or process took.
std::vector<CpuSet> place_threads(const CpuFiles& files, std::span<const int> cpus, int threads, Pinning pinning);

// Keeps the calling thread on these cpus. A system that refuses is obeyed: pinning is speed, never a condition.
void pin_this_thread(std::span<const int> cpus);

// Asks for the pages of [data, data + bytes), page-aligned and untouched, from the memory nodes of this process in
// turn: tasks are claimed by whichever thread is free, so every thread reads everything, and all nodes' channels should
// serve it. Does nothing on one node, or where the system refuses.
void spread_over_nodes(void* data, std::size_t bytes);

}  // namespace outrider
