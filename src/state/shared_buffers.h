// Inside of the pools of row state: buffers of one size with owner counts, and the list of released ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/memory.h"

namespace outrider {

struct BufferSlab;

// Measured on a virtual machine (buffers of 1.5 MB): a fresh mapping costs 940 us of page faults and 130 us to unmap, a
// memset of a released buffer 160 us. So released buffers are kept, and cleared where that is asked for when they are
// handed out again.
struct SharedBuffer {
  std::span<std::byte> memory;
  BufferSlab* slab = nullptr;
  std::int64_t owners = 0;
  SharedBuffer* next = nullptr;  // in a chain of buffers that no row holds
  bool used_before = false;
};

// Buffers that were allocated together.
struct BufferSlab {
  BufferSlab* next = nullptr;
  std::int64_t count = 0;
  std::int64_t idle = 0;  // of trim()
  MemoryPart part;        // what it is charged to
  AlignedBuffer memory;
  std::unique_ptr<SharedBuffer[]> buffers;

  BufferSlab(std::int64_t buffers_count, std::size_t bytes, MemoryPart charged);
};

// What a taken buffer holds before its first write.
enum class BufferFill {
  zeroed,
  overwritten  // the caller writes every byte before it reads one
};

// How many buffers a pool may have: what rows are planned with, and beyond that what prefix entries may keep.
struct BufferCapacity {
  std::int64_t rows = 0, prefix = 0;
  std::int64_t all() const { return rows + prefix; }
};

// Buffers of `bytes` bytes (whole cache lines where there are many); as many as rows are planned with are charged to
// `part`, further ones to MemoryPart::prefix. Ends after the last of them was dropped (CHECK).
//
// Buffers come in slabs, of one buffer at first and of more the more there are, so that most memory of a long context
// lies on large pages (a walk over 8,192 positions of a 1 B model touches 49,000 small ones) and a short one takes no
// more than its own. A whole slab is charged: at most a quarter more than the buffers taken, never more than the
// capacity of its part.
class SharedBuffers {
 public:
  SharedBuffers(std::size_t bytes, MemoryPart part, BufferCapacity capacity);
  ~SharedBuffers();
  SharedBuffers(const SharedBuffers&) = delete;
  SharedBuffers& operator=(const SharedBuffers&) = delete;

  std::size_t bytes() const { return bytes_; }
  std::int64_t capacity() const { return capacity_.all(); }
  std::int64_t used() const { return used_; }
  std::int64_t free() const { return capacity() - used_; }

  // A buffer with one owner. Error (memory) when the system has none; taking more than free() is a programming error.
  SharedBuffer* take(BufferFill fill);
  void drop_owner(SharedBuffer* buffer) noexcept;
  // Gives back slabs of which no buffer has an owner.
  void trim() noexcept;

 private:
  void grow();

  std::size_t bytes_;
  MemoryPart part_;
  BufferCapacity capacity_;
  BufferCapacity allocated_;
  std::int64_t used_ = 0;
  BufferSlab* slabs_ = nullptr;  // owned
  SharedBuffer* released_ = nullptr;
};

// Buffers taken but not yet in a row; gives them back unless they are popped. Allocates nothing of its own.
class SharedBufferChain {
 public:
  explicit SharedBufferChain(SharedBuffers& pool) : pool_(pool) {}
  ~SharedBufferChain() {
    while (first_ != nullptr) pool_.drop_owner(pop());
  }
  SharedBufferChain(const SharedBufferChain&) = delete;
  SharedBufferChain& operator=(const SharedBufferChain&) = delete;

  SharedBuffer* push(BufferFill fill) {
    SharedBuffer* buffer = pool_.take(fill);
    buffer->next = first_;
    return first_ = buffer;
  }
  SharedBuffer* pop() noexcept {
    SharedBuffer* buffer = first_;
    first_ = std::exchange(buffer->next, nullptr);
    return buffer;
  }

 private:
  SharedBuffers& pool_;
  SharedBuffer* first_ = nullptr;
};

}  // namespace outrider
