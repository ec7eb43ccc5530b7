// Inside of KvPool and KvRow: blocks with owner counts and the list of released ones.
#pragma once

#include <cstdint>
#include <utility>

#include "base/memory.h"
#include "state/kv_row.h"

namespace outrider {

// Measured on a virtual machine (blocks of 1.5 MB): a fresh mapping costs 940 us of page faults and 130 us to unmap, a
// memset of a released block 160 us. So released blocks are kept and cleared when they are handed out again.
struct KvBlock {
  AlignedBuffer memory;
  std::int64_t owners = 0;
  KvBlock* next = nullptr;  // in a chain of blocks that no row holds
  bool used_before = false;

  explicit KvBlock(std::size_t bytes) : memory(bytes, MemoryPart::kv) {}
};

// What a taken block holds before its first write.
enum class BlockFill {
  zeroed,
  overwritten  // the caller writes every byte
};

struct KvBlockStore {
  KvLayout layout;
  std::int64_t capacity = 0;
  std::int64_t used = 0;
  KvBlock* released = nullptr;

  KvBlockStore(KvLayout shape, std::int64_t capacity_blocks);
  ~KvBlockStore();
  // Error (memory) unless `count` more blocks fit.
  void check_room(std::int64_t count, std::int64_t tokens) const;
  // A block with one owner. Error (memory) when the system has none; the caller has called check_room.
  KvBlock* take(BlockFill fill);
  void drop_owner(KvBlock* block) noexcept;
  void trim() noexcept;
};

// Blocks taken but not yet in a row; gives them back unless they are popped. Allocates nothing of its own.
class KvBlockChain {
 public:
  explicit KvBlockChain(KvBlockStore& pool) : pool_(pool) {}
  ~KvBlockChain() {
    while (first_ != nullptr) pool_.drop_owner(pop());
  }
  KvBlockChain(const KvBlockChain&) = delete;
  KvBlockChain& operator=(const KvBlockChain&) = delete;

  KvBlock* push(BlockFill fill) {
    KvBlock* block = pool_.take(fill);
    block->next = first_;
    return first_ = block;
  }
  KvBlock* pop() noexcept {
    KvBlock* block = first_;
    first_ = std::exchange(block->next, nullptr);
    return block;
  }

 private:
  KvBlockStore& pool_;
  KvBlock* first_ = nullptr;
};

}  // namespace outrider
