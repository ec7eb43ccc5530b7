// How many physical cores this process may keep busy.
#pragma once

#include <filesystem>
#include <span>

#include "base/cgroup.h"

namespace outrider {

struct CpuFiles {
  std::filesystem::path cpus = "/sys/devices/system/cpu";  // cpu<N>/topology/{physical_package_id,core_id}
  CgroupFiles cgroup;
};

// Distinct (package, core) pairs among the logical cpus. A cpu without topology files counts as a core of its own.
int physical_cores(const CpuFiles& files, std::span<const int> cpus);

// Cores worth a thread each, at least 1: physical cores, cut to the whole cpus of the quota (one thread more would stop
// all threads of a loop for the rest of each period).
int usable_cores(const CpuFiles& files, std::span<const int> cpus);

}  // namespace outrider
