// Rows of recurrent layers: the state after a position, kept in slots outside each other (design.md section 3;
// runtime.md 2.3).
//
// A slot holds the state of all recurrent layers of one model after one position, and a log what the tokens of a verify
// window behind its first one add to it; both are written once, by the step that reaches those positions. From then on
// they are read-only, so that rounds, forks, checkpoints and prefix entries share them by counting owners, and an abort
// at any instant finds the committed state as it was. A state is a slot, or a slot and the first tokens of a log, which
// the next step replays on its way: a window costs the traffic of one state, not of one per token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/tensor.h"

namespace outrider {

struct RecurrentSlotStore;

// What a pool may have: slots and logs of rows, and beyond them slots that entries of a prefix store may keep.
struct RecurrentCapacity {
  std::int64_t row_slots = 0;
  std::int64_t row_logs = 0;    // of log_tokens tokens each
  std::int64_t log_tokens = 0;  // a window of one token more is the longest
  std::int64_t prefix_slots = 0;

  // Of the rows' slots and logs.
  std::uint64_t row_bytes(const RecurrentLayout& layout) const {
    return static_cast<std::uint64_t>(row_slots) * layout.slot_bytes() +
           static_cast<std::uint64_t>(row_logs) * layout.log_bytes(log_tokens);
  }
};

// Slots and logs of one model: those of rows are charged to MemoryPart::recurrent when first taken, slots beyond them
// to MemoryPart::prefix. A released one is kept for reuse until trim(). The pool outlives its rows and does not move.
// One engine thread at a time.
class RecurrentPool {
 public:
  RecurrentPool(RecurrentLayout layout, const RecurrentCapacity& capacity);
  ~RecurrentPool();
  RecurrentPool(const RecurrentPool&) = delete;
  RecurrentPool& operator=(const RecurrentPool&) = delete;

  const RecurrentLayout& layout() const;
  std::int64_t capacity_slots() const;  // of both kinds
  // Slots and logs that rows hold, a shared one counted once.
  std::int64_t used_slots() const;
  std::int64_t used_logs() const;
  // Gives the memory of released slots back to the system.
  void trim() noexcept;

 private:
  friend class RecurrentRow;
  std::unique_ptr<RecurrentSlotStore> store_;
};

// Which positions of a step a row stores. `at_end`: after the last token only (prompts, decode); `every`: after every
// token (verify windows, whose round may keep any of them): a slot after the first and a log of the others.
// Checkpoints, absolute positions in ascending order, get a slot wherever they fall, and stay with the row when it goes
// on (serving.md section 6); those outside the step's (length, length + tokens] are passed over.
enum class StorePositions : std::uint8_t { at_end, every };
struct StoreChoice {
  StorePositions positions = StorePositions::at_end;
  std::span<const std::int64_t> checkpoints = {};
};

// One request's state in all recurrent layers. Move-only. Length 0 is the state of zeros and holds no slot.
class RecurrentRow {
 public:
  explicit RecurrentRow(RecurrentPool& pool);
  RecurrentRow(RecurrentRow&& other) noexcept;
  RecurrentRow& operator=(RecurrentRow&& other) noexcept;
  ~RecurrentRow();

  std::int64_t length() const;
  std::string signature() const { return "recurrent"; }
  bool joins(const RecurrentRow& other) const;

  // Slots and a log for a step, taken but not yet the row's. Gives them back unless adopted.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation();

   private:
    friend class RecurrentRow;
    struct Impl;
    explicit Reservation(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  // All that can fail of reserve(): Error (memory) with numbers when the pool is full. The row stays as it is. A window
  // longer than a log is a programming error.
  Reservation prepare_reserve(std::int64_t tokens, const StoreChoice& stores);
  void adopt(Reservation reservation) noexcept;
  // Takes the slots of a step of `tokens` >= 1 tokens. One reservation at a time: a second one is a programming error.
  void reserve(std::int64_t tokens, const StoreChoice& stores) { adopt(prepare_reserve(tokens, stores)); }
  // What the step reads and writes. Valid until the next call that changes the row.
  RecurrentAccess access() const;
  // Publishes the state after `tokens` of the reserved ones, a stored position (CHECK) or 0; gives back the slots of
  // the positions behind it and, outside a round, those before it that are no checkpoints.
  void advance(std::int64_t tokens) noexcept;
  void release_reserved() noexcept;

  // A round (runtime.md 2.2, 2.3): every stored position since begin keeps its slot, the committed one too. Rollback
  // selects the state after begin + keep: a stored position, or 0 (CHECK). So a window's round keeps any number of its
  // tokens, a chunk's none, all, or up to a checkpoint. The other programming errors are KvRow's.
  void round_begin() noexcept;
  void round_commit() noexcept;
  void round_rollback(std::int64_t keep) noexcept;
  bool in_round() const;
  std::int64_t round_appended() const;

  // Positions other than 0 whose state the row holds, ascending: checkpoints and length().
  std::vector<std::int64_t> stored_positions() const;
  // Outside a round: forgets the checkpoints but for length().
  void drop_checkpoints() noexcept;
  // A row of the first n positions that shares this row's slots, checkpoints too; n is 0 or a stored position (CHECK),
  // inside a round not beyond its begin.
  RecurrentRow prefix(std::int64_t n) const;
  RecurrentRow clone() const { return prefix(length()); }
  // Whether another row holds the slot of the current state, too.
  bool state_is_shared() const;
  // An independent copy of the current state: shares nothing, has no checkpoints.
  RecurrentRow extract() const;

  // The bytes of the current state, layout().slot_bytes() of them; empty at length 0. Valid as access() is. A state
  // with a log behind its slot (access().log) is a programming error: a checkpoint never has one.
  std::span<const std::byte> state() const;
  // Gives an empty row the state after `length` >= 1 positions, as state() returned it: checkpoints on disk, tests.
  void load(std::int64_t length, std::span<const std::byte> state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
