#include "base/cpu_placement.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>

#include "base/error.h"

namespace outrider {
namespace {

constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);

// "0-3,8,10-11" of a kernel list; what is no number ends it.
std::vector<int> parse_list(std::string_view text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) break;
    int last = first;
    if (read.ptr != end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc()) break;
    for (int n = first; n <= last; ++n) numbers.push_back(n);
    at = read.ptr != end && *read.ptr == ',' ? read.ptr + 1 : end;
  }
  return numbers;
}

// No stream: one would swallow that memory is short and give a shorter list.
std::vector<int> list_in(const std::filesystem::path& path) {
  std::array<char, 4096> text{};  // the system gives no more
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t bytes = read(file, text.data(), text.size());
  close(file);
  return parse_list({text.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0});
}

std::vector<unsigned long> bit_mask(std::span<const int> numbers) {
  const int most = numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end());
  std::vector<unsigned long> mask(static_cast<std::size_t>(most) / kWordBits + 1);
  for (const int n : numbers)
    mask[static_cast<std::size_t>(n) / kWordBits] |= 1UL << static_cast<std::size_t>(n) % kWordBits;
  return mask;
}

}  // namespace

Pinning pinning_from(const char* value) {
  const std::string_view text = value == nullptr ? std::string_view() : value;
  if (text.empty() || text == "auto") return Pinning::automatic;
  if (text == "on") return Pinning::on;
  if (text == "off") return Pinning::off;
  throw Error(ErrorKind::usage, fmt::format("OUTRIDER_PIN is \"{}\"", text), "use auto, on or off");
}

std::vector<CpuSet> cores_of(const CpuFiles& files, std::span<const int> cpus) {
  std::vector<CpuSet> cores;
  std::map<std::pair<long long, long long>, std::size_t> known;
  for (const int cpu : cpus) {
    const auto id = core_id(files, cpu);
    if (id) {
      const auto [at, is_new] = known.emplace(*id, cores.size());
      if (!is_new) {
        cores[at->second].push_back(cpu);
        continue;
      }
    }
    cores.push_back({cpu});
  }
  return cores;
}

std::vector<int> memory_nodes(const CpuFiles& files, std::span<const int> cpus) {
  std::vector<int> nodes;
  for (const int node : list_in(files.nodes / "online")) {
    const std::vector<int> of_node = list_in(files.nodes / fmt::format("node{}", node) / "cpulist");
    if (std::find_first_of(of_node.begin(), of_node.end(), cpus.begin(), cpus.end()) != of_node.end())
      nodes.push_back(node);
  }
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

std::vector<CpuSet> place_threads(const CpuFiles& files, std::span<const int> cpus, int threads, Pinning pinning) {
  if (pinning == Pinning::off || threads < 2 || usable_cores(files, cpus) != threads) return {};
  std::vector<CpuSet> cores = cores_of(files, cpus);
  if (static_cast<int>(cores.size()) != threads) return {};  // a quota: not all cores are kept busy
  if (pinning == Pinning::automatic && memory_nodes(files, cpus).size() < 2) return {};
  return cores;
}

void pin_this_thread(std::span<const int> cpus) {
  const std::vector<unsigned long> mask = bit_mask(cpus);
  sched_setaffinity(0, mask.size() * sizeof(unsigned long), reinterpret_cast<const cpu_set_t*>(mask.data()));
}

void spread_over_nodes(void* data, std::size_t bytes) {
  // Asked once: a buffer allocated later follows the same nodes even if the mask has changed since.
  static const std::vector<int> nodes = memory_nodes(CpuFiles{}, allowed_cpus());
  if (nodes.size() < 2) return;
  const std::vector<unsigned long> mask = bit_mask(nodes);
  // The kernel reads one bit less than it is told of.
  syscall(SYS_mbind, data, bytes, kInterleave, mask.data(), mask.size() * kWordBits + 1, 0);
}

}  // namespace outrider
