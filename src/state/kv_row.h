// KV rows of attention layers: paged, row-private, shared by reference count (design.md section 3; runtime.md section
// 2).
//
// runtime.md names three ways attention reads a row: decode (one new position), window (several: prompts, verify
// windows) and committed (positions already decided). Here they are one: reserve(), the step writes and attends through
// blocks(), advance(). A position's bytes depend on nothing but its own inputs, so all three agree by construction.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/tensor.h"

namespace outrider {

struct KvBlockStore;
struct SharedBuffer;

// Blocks of 64 positions for every attention layer of one model: `row_blocks` for rows, charged to MemoryPart::kv, and
// beyond them `prefix_blocks` that entries of a prefix store may keep, charged to MemoryPart::prefix. Blocks are zeroed
// when handed out. A released block is kept for reuse until trim(). The pool outlives its rows and does not move. One
// engine thread at a time.
class KvPool {
 public:
  explicit KvPool(KvLayout layout, std::int64_t row_blocks, std::int64_t prefix_blocks = 0);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvLayout& layout() const;
  std::int64_t capacity_blocks() const;  // of both kinds
  // Blocks that rows hold, a shared block counted once.
  std::int64_t used_blocks() const;
  // Gives the memory of released blocks back to the system.
  void trim() noexcept;

 private:
  friend class KvRow;
  std::unique_ptr<KvBlockStore> store_;
};

// A counted reference to one full block of a row: keeps it, and so keeps it read-only. Move-only.
class KvBlock {
 public:
  KvBlock(KvBlock&& other) noexcept : store_(other.store_), buffer_(std::exchange(other.buffer_, nullptr)) {}
  KvBlock& operator=(KvBlock&& other) noexcept;
  ~KvBlock();
  // Whether somebody else holds the block, too.
  bool shared() const;

 private:
  friend class KvRow;
  KvBlock(KvBlockStore* store, SharedBuffer* buffer) noexcept;
  KvBlockStore* store_ = nullptr;
  SharedBuffer* buffer_ = nullptr;  // null: moved from
};

// One request's rows in all attention layers. Move-only; clone() and prefix() share blocks. Positions below length()
// never move. Appending into a block with more than one owner copies it first.
class KvRow {
 public:
  explicit KvRow(KvPool& pool);
  // A row of whole blocks of the pool, shared with whoever holds them.
  KvRow(KvPool& pool, std::span<const KvBlock* const> blocks);
  KvRow(KvRow&& other) noexcept;
  KvRow& operator=(KvRow&& other) noexcept;
  ~KvRow();

  std::int64_t length() const;
  std::string signature() const;  // "kv:plain", or "kv:plain:f32" for f32 rows
  // Whether both rows live in one pool, so that they can stand in one group.
  bool joins(const KvRow& other) const;
  // Blocks covering [0, length() + reserved), for BatchRow::blocks. Valid until the next call that changes the row.
  std::span<std::byte* const> blocks() const;

  // Makes [length(), length()+tokens) present and writable. All that can fail happens here: Error (memory) with numbers
  // when the pool is full, and the row is unchanged. Nothing is published until advance(). Sharing the row's last block
  // by clone() or prefix() ends the reservation of that block: reserve again before writing (advance() checks).
  void reserve(std::int64_t tokens);
  // Publishes `tokens` <= reserved positions. The rest of the reservation stays.
  void advance(std::int64_t tokens) noexcept;
  // Sets length to n <= length(); blocks wholly behind it are released, reserved ones too.
  void truncate(std::int64_t n) noexcept;
  // Gives back blocks reserved beyond length().
  void release_reserved() noexcept;

  // A round (runtime.md 2.2): begin notes the length, then appends, then commit keeps all or rollback keeps the first
  // `keep` of the appended positions. No data moves. Programming errors (CHECK): begin inside a round, the others
  // outside one, keep beyond what was appended; clone, extract and truncate inside a round, prefix beyond its begin.
  void round_begin() noexcept;
  void round_commit() noexcept;
  void round_rollback(std::int64_t keep) noexcept;
  bool in_round() const;
  // Positions appended since round_begin().
  std::int64_t round_appended() const;

  // A row of the first n <= length() positions that shares this row's blocks.
  KvRow prefix(std::int64_t n) const;
  KvRow clone() const { return prefix(length()); }
  // The block of positions [64 index, 64 index + 64), all of them committed (CHECK).
  KvBlock share_block(std::int64_t index) const noexcept;
  // An independent dense copy of the valid span (materialize_copy): shares nothing and holds no stale bytes.
  KvRow extract() const;

  // Appends L positions from token-major f16 (or f32) planes k, v [layers][L][K*D]: checkpoints, prefixes, tests.
  void append(std::span<const std::byte> k, std::span<const std::byte> v, std::int64_t tokens);
  // The inverse: positions [begin, end) token-major, as append() takes them.
  void read(std::int64_t begin, std::int64_t end, std::span<std::byte> k, std::span<std::byte> v) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
