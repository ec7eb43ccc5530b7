#include "base/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/worker_pool.h"

namespace outrider {
namespace {

std::optional<long long> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  long long value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // The kernel refuses a set smaller than its own, which has more than 1024 bits on the largest machines.
  for (std::size_t limit = CPU_SETSIZE; limit <= 64 * CPU_SETSIZE; limit *= 2) {
    std::vector<unsigned long> mask(limit / (8 * sizeof(unsigned long)));
    const std::size_t bytes = mask.size() * sizeof(unsigned long);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, bytes, set) != 0) continue;
    for (std::size_t cpu = 0; cpu < limit; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(static_cast<int>(cpu));
    break;
  }
  return cpus;
}

std::optional<std::pair<long long, long long>> core_id(const CpuFiles& files, int cpu) {
  const std::filesystem::path topology = files.cpus / fmt::format("cpu{}", cpu) / "topology";
  const auto package = number_in(topology / "physical_package_id");
  const auto core = number_in(topology / "core_id");
  if (!package || !core) return std::nullopt;
  return std::pair(*package, *core);
}

int physical_cores(const CpuFiles& files, std::span<const int> cpus) {
  std::set<std::pair<long long, long long>> cores;
  int unknown = 0;
  for (const int cpu : cpus) {
    if (const auto id = core_id(files, cpu))
      cores.insert(*id);
    else
      ++unknown;
  }
  return static_cast<int>(cores.size()) + unknown;
}

std::size_t last_cache_bytes(const CpuFiles& files) {
  std::size_t largest = 0;
  for (int index = 0;; ++index) {
    std::ifstream in(files.cpus / "cpu0" / "cache" / fmt::format("index{}", index) / "size");
    std::size_t count = 0;
    char unit = 0;
    if (!(in >> count)) return largest;
    in >> unit;
    largest = std::max(largest, count << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0));
  }
}

int usable_cores(const CpuFiles& files, std::span<const int> cpus) {
  int cores = physical_cores(files, cpus);
  if (const auto quota = cpu_quota(files.cgroup); quota && *quota < cores) cores = static_cast<int>(*quota);
  return std::max(cores, 1);
}

int default_threads() { return usable_cores(CpuFiles{}, allowed_cpus()); }

}  // namespace outrider
