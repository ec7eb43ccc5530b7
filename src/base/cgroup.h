// Limits that the control groups of this process set, read from given roots so that other machines can be tested from
// files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

namespace outrider {

// Where the system says it. The defaults are those of Linux.
struct CgroupFiles {
  std::filesystem::path tree = "/sys/fs/cgroup";    // v2: the tree itself; v1: one tree per controller below it
  std::filesystem::path own = "/proc/self/cgroup";  // lines "id:controllers:path"; v2 has no controllers
};

// The tightest limit of the own group and of those above it, v1 and v2; none where nothing limits. Inside a container
// the own path is often one of the host that is not visible: then the groups that can be seen count.
std::optional<double> cpu_quota(const CgroupFiles& files);          // in cpus
std::optional<std::size_t> memory_limit(const CgroupFiles& files);  // in bytes

}  // namespace outrider
