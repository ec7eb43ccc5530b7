// Test programs only; include in exactly one source of a program. Replaces operator new and delete: every allocation is
// a fallible point (base/failure_injection.h) that throws std::bad_alloc, and live_heap_blocks() counts what the
// calling thread has allocated and not freed, so that a test can ask for a balance of zero.
#pragma once

#include <cstdlib>
#include <new>

#include "base/failure_injection.h"

namespace outrider {

inline constinit thread_local std::int64_t live_heap_block_count = 0;
inline std::int64_t live_heap_blocks() { return live_heap_block_count; }

inline void* counted_allocate(std::size_t bytes, std::size_t alignment) {
  if (armed_failure != nullptr && armed_failure->next("operator new")) throw std::bad_alloc();
  bytes = bytes == 0 ? 1 : bytes;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  ++live_heap_block_count;
  return memory;
}

inline void counted_free(void* memory) noexcept {
  if (memory == nullptr) return;
  --live_heap_block_count;
  std::free(memory);
}

}  // namespace outrider

#if OUTRIDER_COUNTED_NEW
void* operator new(std::size_t bytes) { return outrider::counted_allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return outrider::counted_allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return outrider::counted_allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return outrider::counted_allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { outrider::counted_free(memory); }
void operator delete[](void* memory) noexcept { outrider::counted_free(memory); }
void operator delete(void* memory, std::size_t) noexcept { outrider::counted_free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { outrider::counted_free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { outrider::counted_free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { outrider::counted_free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { outrider::counted_free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { outrider::counted_free(memory); }
#endif
