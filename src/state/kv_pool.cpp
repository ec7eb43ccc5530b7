#include "state/kv_pool.h"

#include "base/error.h"

namespace outrider {

KvBlockStore::KvBlockStore(KvLayout shape, BufferCapacity capacity)
    : layout(shape), blocks(shape.block_bytes(), MemoryPart::kv, capacity) {
  OUTRIDER_CHECK(layout.layers > 0 && layout.kv_heads > 0 && layout.head_width > 0,
                 "{} attention layers, {} kv heads of width {}", layout.layers, layout.kv_heads, layout.head_width);
  OUTRIDER_CHECK(layout.type != FloatType::bf16, "KV rows are f16 or f32");
}

void KvBlockStore::check_room(std::int64_t count, std::int64_t tokens) const {
  if (count <= blocks.free()) return;
  throw Error(ErrorKind::memory,
              fmt::format("{} more positions need {} KV blocks of {} bytes; {} of {} are free", tokens, count,
                          layout.block_bytes(), blocks.free(), blocks.capacity()),
              "raise --memory-budget, or lower the context or the number of rows");
}

KvPool::KvPool(KvLayout layout, std::int64_t row_blocks, std::int64_t prefix_blocks)
    : store_(std::make_unique<KvBlockStore>(layout, BufferCapacity{row_blocks, prefix_blocks})) {}
KvPool::~KvPool() = default;
const KvLayout& KvPool::layout() const { return store_->layout; }
std::int64_t KvPool::capacity_blocks() const { return store_->blocks.capacity(); }
std::int64_t KvPool::used_blocks() const { return store_->blocks.used(); }
void KvPool::trim() noexcept { store_->blocks.trim(); }

}  // namespace outrider
