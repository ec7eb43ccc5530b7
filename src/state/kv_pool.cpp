#include "state/kv_pool.h"

#include <cstring>

#include "base/error.h"

namespace outrider {

KvBlockStore::KvBlockStore(KvLayout shape, std::int64_t capacity_blocks) : layout(shape), capacity(capacity_blocks) {
  OUTRIDER_CHECK(layout.layers > 0 && layout.kv_heads > 0 && layout.head_width > 0,
                 "{} attention layers, {} kv heads of width {}", layout.layers, layout.kv_heads, layout.head_width);
  OUTRIDER_CHECK(layout.type != FloatType::bf16, "KV rows are f16 or f32");
  OUTRIDER_CHECK(capacity >= 0, "{} blocks", capacity);
}

KvBlockStore::~KvBlockStore() {
  OUTRIDER_CHECK(used == 0, "a KV pool ends while rows hold {} blocks", used);
  trim();
}

void KvBlockStore::check_room(std::int64_t count, std::int64_t tokens) const {
  if (count <= capacity - used) return;
  throw Error(ErrorKind::memory,
              fmt::format("{} more positions need {} KV blocks of {} bytes; {} of {} are free", tokens, count,
                          layout.block_bytes(), capacity - used, capacity),
              "raise --memory-budget, or lower the context or the number of rows");
}

KvBlock* KvBlockStore::take(BlockFill fill) {
  OUTRIDER_CHECK(used < capacity, "a KV block beyond the {} of the pool", capacity);
  KvBlock* block = released;
  if (block == nullptr) {
    block = new KvBlock(layout.block_bytes());
  } else {
    released = std::exchange(block->next, nullptr);
  }
  if (block->used_before && fill == BlockFill::zeroed) std::memset(block->memory.data(), 0, block->memory.size());
  block->used_before = true;
  block->owners = 1;
  ++used;
  return block;
}

void KvBlockStore::drop_owner(KvBlock* block) noexcept {
  OUTRIDER_CHECK(block->owners > 0);
  if (--block->owners > 0) return;
  --used;
  block->next = released;
  released = block;
}

void KvBlockStore::trim() noexcept {
  while (released != nullptr) {
    KvBlock* block = released;
    released = block->next;
    delete block;
  }
}

KvPool::KvPool(KvLayout layout, std::int64_t capacity_blocks)
    : store_(std::make_unique<KvBlockStore>(layout, capacity_blocks)) {}
KvPool::~KvPool() = default;
const KvLayout& KvPool::layout() const { return store_->layout; }
std::int64_t KvPool::capacity_blocks() const { return store_->capacity; }
std::int64_t KvPool::used_blocks() const { return store_->used; }
void KvPool::trim() noexcept { store_->trim(); }

}  // namespace outrider
