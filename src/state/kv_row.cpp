#include "state/kv_row.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/failure_injection.h"
#include "state/kv_pool.h"

namespace outrider {
namespace {

// The first `count` positions of a block, in all layers and heads; the rest of `to` is left as it is.
void copy_positions(const KvLayout& layout, const std::byte* from, std::byte* to, std::int64_t count) {
  if (count == kBlockKeys) {
    std::memcpy(to, from, layout.block_bytes());
    return;
  }
  const std::size_t value = size_of(layout.type);
  const std::size_t key_line = kBlockKeys * value;
  const auto positions = static_cast<std::size_t>(count);
  const auto width = static_cast<std::size_t>(layout.head_width);
  for (std::int64_t layer = 0; layer < layout.layers; ++layer) {
    for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
      const std::size_t k = layout.k_offset(layer, head);
      const std::size_t v = layout.v_offset(layer, head);
      for (std::size_t d = 0; d < width; ++d)
        std::memcpy(to + k + d * key_line, from + k + d * key_line, positions * value);
      std::memcpy(to + v, from + v, positions * width * value);
    }
  }
}

// A run of positions inside one block, of one (layer, kv head): where it lies in the block and in token-major planes
// [layers][end - begin][K*D]. Offsets in bytes.
struct HeadRun {
  std::int64_t block = 0;
  std::int64_t first = 0;  // position within the block
  std::int64_t count = 0;
  std::size_t k_offset = 0;
  std::size_t v_offset = 0;
  std::size_t plane_offset = 0;
};

// Visits the runs that make up positions [begin, end).
template <class Visit>
void for_each_run(const KvLayout& layout, std::int64_t begin, std::int64_t end, Visit visit) {
  const std::int64_t line = layout.kv_heads * layout.head_width;
  for (std::int64_t layer = 0; layer < layout.layers; ++layer) {
    for (std::int64_t position = begin; position < end;) {
      const std::int64_t first = position % kBlockKeys;
      const std::int64_t count = std::min(kBlockKeys - first, end - position);
      for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
        const std::int64_t value = (layer * (end - begin) + position - begin) * line + head * layout.head_width;
        visit(HeadRun{position / kBlockKeys, first, count, layout.k_offset(layer, head), layout.v_offset(layer, head),
                      static_cast<std::size_t>(value) * size_of(layout.type)});
      }
      position += count;
    }
  }
}

// Copies a run between a block and token-major planes; K is transposed, V is not. `kValue` bytes a value; memcpy,
// because planes may come from a file at any alignment.
template <std::size_t kValue>
void store_run(const KvLayout& layout, const HeadRun& run, const std::byte* k, const std::byte* v, std::byte* block) {
  const auto width = static_cast<std::size_t>(layout.head_width);
  const std::size_t line = static_cast<std::size_t>(layout.kv_heads) * width * kValue;
  for (std::int64_t i = 0; i < run.count; ++i) {
    const std::size_t from = run.plane_offset + static_cast<std::size_t>(i) * line;
    const auto slot = static_cast<std::size_t>(run.first + i);
    for (std::size_t d = 0; d < width; ++d)
      std::memcpy(block + run.k_offset + (d * kBlockKeys + slot) * kValue, k + from + d * kValue, kValue);
    std::memcpy(block + run.v_offset + slot * width * kValue, v + from, width * kValue);
  }
}

template <std::size_t kValue>
void load_run(const KvLayout& layout, const HeadRun& run, const std::byte* block, std::byte* k, std::byte* v) {
  const auto width = static_cast<std::size_t>(layout.head_width);
  const std::size_t line = static_cast<std::size_t>(layout.kv_heads) * width * kValue;
  for (std::int64_t i = 0; i < run.count; ++i) {
    const std::size_t to = run.plane_offset + static_cast<std::size_t>(i) * line;
    const auto slot = static_cast<std::size_t>(run.first + i);
    for (std::size_t d = 0; d < width; ++d)
      std::memcpy(k + to + d * kValue, block + run.k_offset + (d * kBlockKeys + slot) * kValue, kValue);
    std::memcpy(v + to, block + run.v_offset + slot * width * kValue, width * kValue);
  }
}

}  // namespace

struct KvRow::Impl {
  static constexpr std::int64_t kNoRound = -1;

  KvBlockStore* pool = nullptr;
  KvPool* owner = nullptr;
  std::int64_t length = 0;
  std::int64_t reserved = 0;
  std::int64_t round_begin = kNoRound;
  std::vector<SharedBuffer*> blocks;  // covering [0, length + reserved)
  std::vector<std::byte*> bytes;      // their memory, in the form BatchRow takes

  ~Impl() { cut_blocks(0); }

  void push(SharedBuffer* block) noexcept {  // both vectors have room
    blocks.push_back(block);
    bytes.push_back(block->memory.data());
  }
  void cut_blocks(std::int64_t count) noexcept {
    while (std::ssize(blocks) > count) {
      pool->blocks.drop_owner(blocks.back());
      blocks.pop_back();
      bytes.pop_back();
    }
  }
  void make_room(std::int64_t count) {
    blocks.reserve(static_cast<std::size_t>(count));
    bytes.reserve(static_cast<std::size_t>(count));
  }
  SharedBuffer*& block_of(std::int64_t position) { return blocks[static_cast<std::size_t>(position / kBlockKeys)]; }

  void reserve(std::int64_t tokens);
};

void KvRow::Impl::reserve(std::int64_t tokens) {
  // Before the sum, which a huge request could overflow.
  if (tokens / kBlockKeys > pool->blocks.capacity()) pool->check_room(tokens / kBlockKeys, tokens);
  const std::int64_t needed = kv_blocks_for(length + tokens);
  const std::int64_t missing = std::max<std::int64_t>(needed - std::ssize(blocks), 0);
  const bool shared_tail = tokens > 0 && length % kBlockKeys != 0 && block_of(length)->owners > 1;
  if (missing == 0 && !shared_tail) {
    reserved = std::max(reserved, tokens);
    return;
  }
  pool->check_room(missing + (shared_tail ? 1 : 0), tokens);
  make_room(needed);
  SharedBufferChain taken(pool->blocks);
  for (std::int64_t i = 0; i < missing; ++i) taken.push(BufferFill::zeroed);
  if (shared_tail) {
    SharedBuffer* copy = taken.push(BufferFill::zeroed);
    copy_positions(pool->layout, block_of(length)->memory.data(), copy->memory.data(), length % kBlockKeys);
    // Nothing fails from here on.
    pool->blocks.drop_owner(std::exchange(block_of(length), taken.pop()));
    bytes[static_cast<std::size_t>(length / kBlockKeys)] = copy->memory.data();
  }
  for (std::int64_t i = 0; i < missing; ++i) push(taken.pop());
  reserved = std::max(reserved, tokens);
}

KvRow::KvRow(KvPool& pool) : impl_(std::make_unique<Impl>()) {
  impl_->pool = pool.store_.get();
  impl_->owner = &pool;
}
KvRow::KvRow(KvPool& pool, std::span<const KvBlock* const> blocks) : KvRow(pool) {
  impl_->make_room(std::ssize(blocks));
  for (const KvBlock* block : blocks) {
    OUTRIDER_CHECK(block->store_ == impl_->pool && block->buffer_ != nullptr, "a row from a block of another pool");
    ++block->buffer_->owners;
    impl_->push(block->buffer_);
  }
  impl_->length = std::ssize(blocks) * kBlockKeys;
}
KvRow::KvRow(KvRow&& other) noexcept = default;
KvRow& KvRow::operator=(KvRow&& other) noexcept = default;
KvRow::~KvRow() = default;

std::int64_t KvRow::length() const { return impl_->length; }
std::string KvRow::signature() const {
  return impl_->pool->layout.type == FloatType::f32 ? "kv:plain:f32" : "kv:plain";
}
bool KvRow::joins(const KvRow& other) const { return impl_->pool == other.impl_->pool; }
std::span<std::byte* const> KvRow::blocks() const { return impl_->bytes; }

void KvRow::reserve(std::int64_t tokens) {
  OUTRIDER_CHECK(tokens >= 0, "reserve of {} positions", tokens);
  fallible_point("KvRow::reserve");
  impl_->reserve(tokens);
}

void KvRow::advance(std::int64_t tokens) noexcept {
  Impl& row = *impl_;
  OUTRIDER_CHECK(tokens >= 0 && tokens <= row.reserved, "advance by {} of {} reserved positions", tokens, row.reserved);
  // Only the block at the old end can have been shared since reserve(): those behind it are the row's alone.
  OUTRIDER_CHECK(tokens == 0 || row.block_of(row.length)->owners == 1, "the block written at {} has {} owners",
                 row.length, row.block_of(row.length)->owners);
  row.length += tokens;
  row.reserved -= tokens;
}

void KvRow::truncate(std::int64_t n) noexcept {
  Impl& row = *impl_;
  OUTRIDER_CHECK(!in_round(), "truncate inside a round");
  OUTRIDER_CHECK(n >= 0 && n <= row.length, "truncate to {} of {} positions", n, row.length);
  row.length = n;
  release_reserved();
}

void KvRow::release_reserved() noexcept {
  impl_->reserved = 0;
  impl_->cut_blocks(kv_blocks_for(impl_->length));
}

bool KvRow::in_round() const { return impl_->round_begin != Impl::kNoRound; }

std::int64_t KvRow::round_appended() const {
  OUTRIDER_CHECK(in_round(), "round_appended outside a round");
  return impl_->length - impl_->round_begin;
}

void KvRow::round_begin() noexcept {
  OUTRIDER_CHECK(!in_round(), "round_begin inside a round");
  impl_->round_begin = impl_->length;
}

void KvRow::round_commit() noexcept {
  OUTRIDER_CHECK(in_round(), "round_commit without round_begin");
  impl_->round_begin = Impl::kNoRound;
}

void KvRow::round_rollback(std::int64_t keep) noexcept {
  OUTRIDER_CHECK(in_round(), "round_rollback without round_begin");
  OUTRIDER_CHECK(keep >= 0 && keep <= round_appended(), "round_rollback keeps {} of {} appended positions", keep,
                 round_appended());
  impl_->length = std::exchange(impl_->round_begin, Impl::kNoRound) + keep;
  release_reserved();
}

KvRow KvRow::prefix(std::int64_t n) const {
  const Impl& row = *impl_;
  const std::int64_t decided = in_round() ? row.round_begin : row.length;
  OUTRIDER_CHECK(n >= 0 && n <= decided, "prefix of {} of {} committed positions", n, decided);
  KvRow shared(*row.owner);
  const std::int64_t count = kv_blocks_for(n);
  shared.impl_->make_room(count);
  for (std::int64_t i = 0; i < count; ++i) {
    SharedBuffer* block = row.blocks[static_cast<std::size_t>(i)];
    ++block->owners;
    shared.impl_->push(block);
  }
  shared.impl_->length = n;
  return shared;
}

KvBlock KvRow::share_block(std::int64_t index) const noexcept {
  const std::int64_t decided = in_round() ? impl_->round_begin : impl_->length;
  OUTRIDER_CHECK(index >= 0 && (index + 1) * kBlockKeys <= decided, "block {} of {} committed positions", index,
                 decided);
  return {impl_->pool, impl_->blocks[static_cast<std::size_t>(index)]};
}

KvBlock::KvBlock(KvBlockStore* store, SharedBuffer* buffer) noexcept : store_(store), buffer_(buffer) {
  ++buffer->owners;
}
KvBlock& KvBlock::operator=(KvBlock&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(buffer_, other.buffer_);
  return *this;
}
KvBlock::~KvBlock() {
  if (buffer_ != nullptr) store_->blocks.drop_owner(buffer_);
}
bool KvBlock::shared() const { return buffer_->owners > 1; }

KvRow KvRow::extract() const {
  const Impl& row = *impl_;
  OUTRIDER_CHECK(!in_round(), "extract inside a round");
  KvRow copy(*row.owner);
  const std::int64_t count = kv_blocks_for(row.length);
  row.pool->check_room(count, row.length);
  copy.impl_->make_room(count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t valid = std::min(row.length - i * kBlockKeys, kBlockKeys);
    SharedBuffer* block = row.pool->blocks.take(valid == kBlockKeys ? BufferFill::overwritten : BufferFill::zeroed);
    copy.impl_->push(block);
    copy_positions(row.pool->layout, row.blocks[static_cast<std::size_t>(i)]->memory.data(), block->memory.data(),
                   valid);
  }
  copy.impl_->length = row.length;
  return copy;
}

void KvRow::append(std::span<const std::byte> k, std::span<const std::byte> v, std::int64_t tokens) {
  Impl& row = *impl_;
  const std::size_t plane = static_cast<std::size_t>(tokens) * row.pool->layout.token_bytes() / 2;
  OUTRIDER_CHECK(tokens >= 0 && k.size() == plane && v.size() == plane, "{} positions from {} and {} bytes, not {}",
                 tokens, k.size(), v.size(), plane);
  reserve(tokens);
  const KvLayout& layout = row.pool->layout;
  const auto store = layout.type == FloatType::f32 ? store_run<4> : store_run<2>;
  for_each_run(layout, row.length, row.length + tokens, [&](const HeadRun& run) {
    store(layout, run, k.data(), v.data(), row.bytes[static_cast<std::size_t>(run.block)]);
  });
  advance(tokens);
}

void KvRow::read(std::int64_t begin, std::int64_t end, std::span<std::byte> k, std::span<std::byte> v) const {
  const Impl& row = *impl_;
  OUTRIDER_CHECK(begin >= 0 && begin <= end && end <= row.length, "read of [{}, {}) of {} positions", begin, end,
                 row.length);
  const std::size_t plane = static_cast<std::size_t>(end - begin) * row.pool->layout.token_bytes() / 2;
  OUTRIDER_CHECK(k.size() == plane && v.size() == plane, "{} positions into {} and {} bytes, not {}", end - begin,
                 k.size(), v.size(), plane);
  const KvLayout& layout = row.pool->layout;
  const auto load = layout.type == FloatType::f32 ? load_run<4> : load_run<2>;
  for_each_run(layout, begin, end, [&](const HeadRun& run) {
    load(layout, run, row.bytes[static_cast<std::size_t>(run.block)], k.data(), v.data());
  });
}

}  // namespace outrider
