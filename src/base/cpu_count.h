// How many physical cores this process may keep busy.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/cgroup.h"

namespace outrider {

struct CpuFiles {
  // cpu<N>/topology/{physical_package_id,core_id}, cpu<N>/cache/index<I>/size
  std::filesystem::path cpus = "/sys/devices/system/cpu";
  CgroupFiles cgroup;
  std::filesystem::path nodes = "/sys/devices/system/node";  // online, node<N>/cpulist
};

// The logical cpus of the affinity mask, ascending; empty where the system does not say.
std::vector<int> allowed_cpus();

// (package, core) of a logical cpu; none without topology files.
std::optional<std::pair<long long, long long>> core_id(const CpuFiles& files, int cpu);

// Distinct (package, core) pairs among the logical cpus. A cpu without topology files counts as a core of its own.
int physical_cores(const CpuFiles& files, std::span<const int> cpus);

// Bytes of the largest cache of the first cpu, 0 where the system does not say: what a measurement of memory must
// exceed.
std::size_t last_cache_bytes(const CpuFiles& files);

// Cores worth a thread each, at least 1: physical cores, cut to the whole cpus of the quota (one thread more would stop
// all threads of a loop for the rest of each period).
int usable_cores(const CpuFiles& files, std::span<const int> cpus);

}  // namespace outrider
