// For the tests of state/: recurrent rows whose states follow from the ids of the positions before them, so that a
// vector of ids is the model of a row. A step is imitated: the state after a position is a hash of the one before and
// the id.
#pragma once

#include <cstring>

#include "state/state_row.h"
#include "state/test_rows.h"

namespace outrider {

// Two layers; a slot of 2 x (2*3*2 + 1*10) floats.
inline RecurrentLayout test_recurrent_layout() { return {2, 1, 2, 3, 2, 2}; }

inline std::uint32_t state_after(std::uint32_t state, std::uint32_t id) {
  std::uint32_t hash = (state ^ (state >> 15)) * 2654435761u + id;
  hash ^= hash >> 13;
  return hash * 2246822519u + 1;
}

inline std::uint32_t state_of(const RowModel& ids) {
  std::uint32_t state = 0;
  for (const std::uint32_t id : ids) state = state_after(state, id);
  return state;
}

inline void write_slot(std::span<std::byte> slot, std::uint32_t state) {
  for (std::size_t i = 0; i < slot.size() / 4; ++i) {
    const std::uint32_t word = state + static_cast<std::uint32_t>(i) * 977u;
    std::memcpy(slot.data() + i * 4, &word, 4);
  }
}

inline bool slot_holds(std::span<const std::byte> slot, std::uint32_t state) {
  std::vector<std::byte> want(slot.size());
  write_slot(want, state);
  return std::memcmp(want.data(), slot.data(), slot.size()) == 0;
}

// The state that an access reads: its slot's, and the ids of the log after it. Every byte of them must be as written.
inline bool read_state(const RecurrentAccess& access, const RecurrentLayout& layout, std::uint32_t* state) {
  *state = 0;
  if (access.read == nullptr) return access.log.tokens == 0;
  std::memcpy(state, access.read, 4);
  bool whole = slot_holds({access.read, layout.slot_bytes()}, *state);
  for (std::int64_t t = access.log.first; t < access.log.first + access.log.tokens; ++t) {
    const std::byte* token = access.log.data + layout.log_bytes(t);
    std::uint32_t id = 0;
    std::memcpy(&id, token, 4);
    whole = whole && slot_holds({token, layout.log_bytes(1)}, id);
    *state = state_after(*state, id);
  }
  return whole;
}

// What a step does with a row's access: reads the state before it, runs over the ids, writes the stores and the log.
inline void run_states(const RecurrentAccess& access, const RecurrentLayout& layout, const RowModel& ids) {
  std::uint32_t state = 0;
  read_state(access, layout, &state);
  auto store = access.stores.begin();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    state = state_after(state, ids[i]);
    if (store != access.stores.end() && store->tokens == static_cast<std::int64_t>(i) + 1)
      write_slot({(store++)->slot, layout.slot_bytes()}, state);
    if (access.write_log != nullptr && i > 0)
      write_slot({access.write_log + layout.log_bytes(static_cast<std::int64_t>(i) - 1), layout.log_bytes(1)}, ids[i]);
  }
}

inline void append_states(RecurrentRow& row, const RecurrentLayout& layout, const RowModel& ids,
                          const StoreChoice& stores = {}) {
  row.reserve(static_cast<std::int64_t>(ids.size()), stores);
  run_states(row.access(), layout, ids);
  row.advance(static_cast<std::int64_t>(ids.size()));
}

inline bool holds(const RecurrentRow& row, const RowModel& ids) {
  if (row.length() != static_cast<std::int64_t>(ids.size())) return false;
  std::uint32_t state = 0;
  return read_state(row.access(), test_recurrent_layout(), &state) && state == state_of(ids) &&
         (row.access().read == nullptr) == ids.empty();
}

// What a step over a row's reservation writes: K and V of the ids' positions, and the states.
inline void write_step(const StateLayout& layout, const BatchRow& place, const RowModel& ids) {
  const KvLayout& kv = layout.kv;
  for (std::int64_t i = 0; i < std::ssize(ids); ++i)
    for (std::int64_t layer = 0; layer < kv.layers; ++layer)
      for (std::int64_t value = 0; value < kv.kv_heads * kv.head_width; ++value) {
        const std::int64_t head = value / kv.head_width, d = value % kv.head_width, p = place.position + i;
        std::byte* block = place.blocks[static_cast<std::size_t>(p / kBlockKeys)];
        const std::uint32_t id = ids[static_cast<std::size_t>(i)];
        const auto k = static_cast<std::uint16_t>(test_value(id, layer, value, KvPlane::k));
        const auto v = static_cast<std::uint16_t>(test_value(id, layer, value, KvPlane::v));
        std::memcpy(block + kv.k_offset(layer, head) + (d * kBlockKeys + p % kBlockKeys) * 2, &k, 2);
        std::memcpy(block + kv.v_offset(layer, head) + (p % kBlockKeys * kv.head_width + d) * 2, &v, 2);
      }
  run_states(place.recurrent, layout.recurrent, ids);
}

inline bool holds(const StateRow& row, const StateLayout& layout, const RowModel& ids) {
  return holds(row.kv(), layout.kv, ids) && holds(*row.recurrent(), ids);
}

}  // namespace outrider
