#include "base/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "base/cgroup.h"
#include "base/cpu_placement.h"
#include "base/error.h"
#include "base/failure_injection.h"

namespace outrider {
namespace {

// From this size on a buffer is its own mapping: zeroed on demand by the system and returned to it at once.
constexpr std::size_t kMapFromBytes = std::size_t{256} << 10;

struct Counter {
  std::atomic<std::size_t> now{0};
  std::atomic<std::size_t> peak{0};
  void add(std::size_t bytes) {
    const std::size_t total = now.fetch_add(bytes) + bytes;
    std::size_t seen = peak.load();
    while (seen < total && !peak.compare_exchange_weak(seen, total)) {
    }
  }
  void subtract(std::size_t bytes) { now.fetch_sub(bytes); }
};

Counter parts[kMemoryParts];
Counter all_parts;

void charge(MemoryPart part, std::size_t bytes) {
  parts[static_cast<int>(part)].add(bytes);
  all_parts.add(bytes);
}

void release(MemoryPart part, std::size_t bytes) {
  parts[static_cast<int>(part)].subtract(bytes);
  all_parts.subtract(bytes);
}

// Zeroed pages of a mapping of their own, at a multiple of `alignment`; null when the system has none.
void* map_pages(std::size_t bytes, std::size_t page, std::size_t alignment) {
  const std::size_t slack = alignment > page ? alignment - page : 0;
  if (bytes == 0 || bytes > SIZE_MAX - slack) return nullptr;  // 0: the rounding of `bytes` to pages overflowed
  void* const mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(mapped);
  const std::size_t before = (alignment - reinterpret_cast<std::uintptr_t>(first) % alignment) % alignment;
  if (before > 0) munmap(first, before);
  if (before < slack) munmap(first + before + bytes, slack - before);
#ifdef MADV_HUGEPAGE
  // Obeyed or not: speed, never a condition.
  if (alignment >= AlignedBuffer::kLargePage) madvise(first + before, bytes, MADV_HUGEPAGE);
#endif
  return first + before;
}

// "123456 kB" fields of /proc files; 0 where the field or the file is missing.
std::size_t proc_field_bytes(const char* file, std::string_view field) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.rfind(field, 0) == 0) return std::strtoull(line.c_str() + field.size(), nullptr, 10) << 10;
  return 0;
}

}  // namespace

std::string_view name_of(MemoryPart part) {
  constexpr std::string_view names[] = {"weights", "kv", "recurrent", "prefix", "scratch", "text", "fixed"};
  return names[static_cast<int>(part)];
}

MemoryUse memory_use(MemoryPart part) {
  const Counter& counter = parts[static_cast<int>(part)];
  return {counter.now.load(), counter.peak.load()};
}

MemoryUse memory_use() { return {all_parts.now.load(), all_parts.peak.load()}; }

void reset_memory_peaks() {
  for (Counter& counter : parts) counter.peak = counter.now.load();
  all_parts.peak = all_parts.now.load();
}

AlignedBuffer::AlignedBuffer(std::size_t bytes, MemoryPart part, std::size_t alignment) : bytes_(bytes), part_(part) {
  OUTRIDER_CHECK(alignment > 0 && (alignment & (alignment - 1)) == 0, "alignment {}", alignment);
  if (bytes == 0) return;
  fallible_point("AlignedBuffer");
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = nullptr;
  if (bytes >= kMapFromBytes) {
    mapped_bytes_ = (bytes + page - 1) / page * page;
    memory = map_pages(mapped_bytes_, page, alignment);
    const bool all_read =
        part == MemoryPart::weights || part == MemoryPart::kv || part == MemoryPart::prefix;  // by every thread
    if (memory != nullptr && all_read) spread_over_nodes(memory, mapped_bytes_);
  } else {
    memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory != nullptr) std::memset(memory, 0, bytes);
  }
  if (memory == nullptr)
    throw Error(ErrorKind::memory, fmt::format("the system refused {} bytes for {}", bytes, name_of(part)),
                "free memory or lower --memory-budget, the context or the number of rows");
  data_ = static_cast<std::byte*>(memory);
  charge(part, bytes);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ == nullptr) return;
  release(part_, bytes_);
  if (mapped_bytes_ > 0)
    munmap(data_, mapped_bytes_);
  else
    std::free(data_);
}

void AlignedBuffer::swap(AlignedBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(part_, other.part_);
}

MemoryCharge::MemoryCharge(std::size_t bytes, MemoryPart part) : bytes_(bytes), part_(part) { charge(part, bytes); }

MemoryCharge::~MemoryCharge() {
  if (bytes_ > 0) release(part_, bytes_);
}

void MemoryCharge::swap(MemoryCharge& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(part_, other.part_);
}

std::size_t process_peak_bytes() { return proc_field_bytes("/proc/self/status", "VmHWM:"); }

std::size_t usable_memory_bytes() {
  const std::size_t installed = proc_field_bytes("/proc/meminfo", "MemTotal:");
  return std::min(installed, memory_limit(CgroupFiles{}).value_or(installed));
}

}  // namespace outrider
