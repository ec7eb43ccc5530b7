// Accounted memory: every large allocation of the engine is an AlignedBuffer charged to one part of the memory plan
// (serving.md 5.1), so that a test can compare the peak with the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace outrider {

// Parts of the plan. `prefix` holds what requests leave behind for others with the same beginning. `fixed` is an
// allowance that is planned and not charged here.
enum class MemoryPart { weights, kv, recurrent, prefix, scratch, text, fixed };
inline constexpr int kMemoryParts = 7;
std::string_view name_of(MemoryPart part);

// Bytes now and at the peak, per part and in all. Process-wide, lock-free.
struct MemoryUse {
  std::size_t now_bytes = 0;
  std::size_t peak_bytes = 0;
};
MemoryUse memory_use(MemoryPart part);
MemoryUse memory_use();
void reset_memory_peaks();

// Owned, zeroed bytes, aligned to `alignment` (a power of two, default one cache line). Move-only. Throws Error
// (memory) with both numbers when the system has none. Large buffers are mapped, so untouched pages cost nothing. One
// that is aligned to large pages asks the system for them: a touch then makes up to kLargePage bytes resident, never
// bytes beyond the buffer.
class AlignedBuffer {
 public:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kLargePage = std::size_t{2} << 20;  // of x86 and ARM
  AlignedBuffer() = default;
  AlignedBuffer(std::size_t bytes, MemoryPart part, std::size_t alignment = kLine);
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    AlignedBuffer(static_cast<AlignedBuffer&&>(other)).swap(*this);
    return *this;
  }
  ~AlignedBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  void swap(AlignedBuffer& other) noexcept;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t mapped_bytes_ = 0;  // > 0: mmap, else aligned allocation
  MemoryPart part_ = MemoryPart::fixed;
};

// A charge for bytes that no AlignedBuffer holds: the pages of a mapped file that the plan counts. Move-only.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(std::size_t bytes, MemoryPart part);
  MemoryCharge(MemoryCharge&& other) noexcept { swap(other); }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    MemoryCharge(static_cast<MemoryCharge&&>(other)).swap(*this);
    return *this;
  }
  ~MemoryCharge();
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(MemoryCharge& other) noexcept;
  std::size_t bytes_ = 0;
  MemoryPart part_ = MemoryPart::fixed;
};

// Peak resident memory of the process (VmHWM) and physical memory this process may use (RAM or its cgroup limit).
std::size_t process_peak_bytes();
std::size_t usable_memory_bytes();

}  // namespace outrider
