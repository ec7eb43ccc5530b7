#include "state/recurrent_row.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/failure_injection.h"
#include "state/shared_buffers.h"

namespace outrider {

struct RecurrentSlotStore {
  RecurrentLayout layout;
  std::int64_t log_tokens;
  SharedBuffers slots, logs;

  RecurrentSlotStore(RecurrentLayout shape, const RecurrentCapacity& capacity)
      : layout(shape),
        log_tokens(capacity.log_tokens),
        slots(shape.slot_bytes(), MemoryPart::recurrent, {capacity.row_slots, capacity.prefix_slots}),
        logs(shape.log_bytes(std::max<std::int64_t>(capacity.log_tokens, 1)), MemoryPart::recurrent,
             {capacity.row_logs, 0}) {
    OUTRIDER_CHECK(layout.layers > 0 && layout.key_heads > 0 && layout.value_heads > 0 && layout.key_width > 0 &&
                       layout.value_width > 0 && layout.taps > 0,
                   "{} recurrent layers of {} and {} heads, {} x {}, {} taps", layout.layers, layout.key_heads,
                   layout.value_heads, layout.key_width, layout.value_width, layout.taps);
  }
  // Error (memory) unless `slot_count` more slots and `log_count` more logs fit.
  void check_room(std::int64_t slot_count, std::int64_t log_count, std::int64_t tokens) const {
    const auto check = [&](const SharedBuffers& of, std::int64_t count, const char* what) {
      if (count <= of.free()) return;
      throw Error(ErrorKind::memory,
                  fmt::format("{} more positions need {} recurrent {} of {} bytes; {} of {} are free", tokens, count,
                              what, of.bytes(), of.free(), of.capacity()),
                  "raise --memory-budget, or lower the number of rows or drafted tokens");
    };
    check(slots, slot_count, "slots");
    check(logs, log_count, "logs");
  }
};

namespace {

enum class Lifetime : std::uint8_t { passing, checkpoint };

// The state after `position` positions: a slot, and the tokens [log_first, log_first + log_tokens) of a log where there
// are any. Counts as one owner of both, dropped by whoever holds the mark.
struct Mark {
  std::int64_t position = 0;
  SharedBuffer* slot = nullptr;
  Lifetime lifetime = Lifetime::passing;
  SharedBuffer* log = nullptr;
  std::int64_t log_first = 0, log_tokens = 0;

  Mark shared() const {
    ++slot->owners;
    if (log != nullptr) ++log->owners;
    return *this;
  }
};

void drop(RecurrentSlotStore& store, const Mark& mark) noexcept {
  store.slots.drop_owner(mark.slot);
  if (mark.log != nullptr) store.logs.drop_owner(mark.log);
}

void drop_all(RecurrentSlotStore& store, std::vector<Mark>& marks) noexcept {
  for (const Mark& mark : marks) drop(store, mark);
  marks.clear();
}

}  // namespace

RecurrentPool::RecurrentPool(RecurrentLayout layout, const RecurrentCapacity& capacity)
    : store_(std::make_unique<RecurrentSlotStore>(layout, capacity)) {}
RecurrentPool::~RecurrentPool() = default;
const RecurrentLayout& RecurrentPool::layout() const { return store_->layout; }
std::int64_t RecurrentPool::capacity_slots() const { return store_->slots.capacity(); }
std::int64_t RecurrentPool::used_slots() const { return store_->slots.used(); }
std::int64_t RecurrentPool::used_logs() const { return store_->logs.used(); }
void RecurrentPool::trim() noexcept {
  store_->slots.trim();
  store_->logs.trim();
}

struct RecurrentRow::Reservation::Impl {
  RecurrentSlotStore& store;
  std::vector<Mark> marks;             // ascending
  std::vector<RecurrentStore> stores;  // as a step takes them
  SharedBuffer* log = nullptr;         // of the marks that have one; an owner of its own, until adopted or dropped

  explicit Impl(RecurrentSlotStore& of) : store(of) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    drop_all(store, marks);
    if (log != nullptr) store.logs.drop_owner(log);
  }
  void take(std::int64_t position, std::int64_t tokens, Lifetime lifetime) {
    SharedBuffer* slot = store.slots.take(BufferFill::overwritten);
    marks.push_back({position, slot, lifetime});
    stores.push_back({tokens, slot->memory.data()});
  }
  // Position `position`, `tokens` of a window, is the last store's slot and the log behind it.
  void take_logged(std::int64_t position, std::int64_t tokens) {
    const auto stored =
        std::find_if(marks.rbegin(), marks.rend(), [](const Mark& mark) { return mark.log == nullptr; });
    const std::int64_t first = stores.back().tokens - 1;
    marks.push_back(Mark{position, stored->slot, Lifetime::passing, log, first, tokens - 1 - first}.shared());
  }
};

RecurrentRow::Reservation::Reservation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RecurrentRow::Reservation::Reservation(Reservation&& other) noexcept = default;
RecurrentRow::Reservation::~Reservation() = default;

struct RecurrentRow::Impl {
  static constexpr std::int64_t kNoRound = -1;

  RecurrentSlotStore* pool = nullptr;
  RecurrentPool* owner = nullptr;
  std::int64_t length = 0;
  std::int64_t round_begin = kNoRound;
  std::vector<Mark> marks;  // ascending, the last one at length; none at length 0
  std::vector<Mark> reserved;
  std::vector<RecurrentStore> stores;    // of `reserved`
  SharedBuffer* reserved_log = nullptr;  // of `reserved`, an owner of its own

  ~Impl() {
    drop_all(*pool, marks);
    drop_all(*pool, reserved);
    if (reserved_log != nullptr) pool->logs.drop_owner(reserved_log);
  }
  // The mark at `position`, or null.
  const Mark* mark_at(std::int64_t position) const {
    const auto at =
        std::find_if(marks.begin(), marks.end(), [&](const Mark& mark) { return mark.position >= position; });
    return at != marks.end() && at->position == position ? &*at : nullptr;
  }
  // Drops what the row holds before its length but for checkpoints.
  void prune() noexcept {
    const auto passed = [&](const Mark& mark) {
      if (mark.position == length || mark.lifetime == Lifetime::checkpoint) return false;
      drop(*pool, mark);
      return true;
    };
    std::erase_if(marks, passed);
  }
  // An empty row gets a copy of the state that `from` marks.
  void copy_state(const Mark& from) {
    pool->check_room(1, from.log != nullptr ? 1 : 0, from.position);
    marks.reserve(1);
    SharedBuffer* const slot = pool->slots.take(BufferFill::overwritten);
    marks.push_back({from.position, slot, Lifetime::passing});
    std::memcpy(slot->memory.data(), from.slot->memory.data(), slot->memory.size());
    if (from.log != nullptr) {
      Mark& mark = marks.back();
      mark.log = pool->logs.take(BufferFill::overwritten);
      mark.log_tokens = from.log_tokens;
      const std::size_t skipped = pool->layout.log_bytes(from.log_first);
      std::memcpy(mark.log->memory.data(), from.log->memory.data() + skipped, pool->layout.log_bytes(from.log_tokens));
    }
    length = from.position;
  }
  void cut_to(std::int64_t position) noexcept {
    while (!marks.empty() && marks.back().position > position) {
      drop(*pool, marks.back());
      marks.pop_back();
    }
    length = position;
  }
};

RecurrentRow::RecurrentRow(RecurrentPool& pool) : impl_(std::make_unique<Impl>()) {
  impl_->pool = pool.store_.get();
  impl_->owner = &pool;
}
RecurrentRow::RecurrentRow(RecurrentRow&& other) noexcept = default;
RecurrentRow& RecurrentRow::operator=(RecurrentRow&& other) noexcept = default;
RecurrentRow::~RecurrentRow() = default;

std::int64_t RecurrentRow::length() const { return impl_->length; }
bool RecurrentRow::joins(const RecurrentRow& other) const { return impl_->pool == other.impl_->pool; }

RecurrentRow::Reservation RecurrentRow::prepare_reserve(std::int64_t tokens, const StoreChoice& choice) {
  Impl& row = *impl_;
  OUTRIDER_CHECK(tokens > 0 && row.reserved.empty(), "reserve of {} positions, {} states are reserved", tokens,
                 row.reserved.size());
  fallible_point("RecurrentRow::reserve");
  const std::int64_t end = row.length + tokens;
  const auto first = std::upper_bound(choice.checkpoints.begin(), choice.checkpoints.end(), row.length);
  const auto last = std::upper_bound(first, choice.checkpoints.end(), end);
  const bool window = choice.positions == StorePositions::every && tokens > 1;
  OUTRIDER_CHECK(!window || tokens - 1 <= row.pool->log_tokens, "a window of {} tokens, a log holds {}", tokens,
                 row.pool->log_tokens);
  // Checkpoints where a slot is taken anyhow.
  const std::int64_t anyhow = (first != last && window && *first == row.length + 1 ? 1 : 0) +
                              (first != last && !window && last[-1] == end ? 1 : 0);
  const std::int64_t slots = 1 + (last - first) - anyhow;
  row.pool->check_room(slots, window ? 1 : 0, tokens);
  auto taken = std::make_unique<Reservation::Impl>(*row.pool);
  const auto count = static_cast<std::size_t>(window ? tokens : slots);
  taken->marks.reserve(count);
  taken->stores.reserve(static_cast<std::size_t>(slots));
  row.marks.reserve(row.marks.size() + count);  // advance() only moves
  if (window) taken->log = row.pool->logs.take(BufferFill::overwritten);
  auto checkpoint = first;
  for (std::int64_t position = row.length + 1; position <= end; ++position) {
    const bool stays = checkpoint != last && *checkpoint == position;
    if (stays) ++checkpoint;
    if (stays || position == (window ? row.length + 1 : end))
      taken->take(position, position - row.length, stays ? Lifetime::checkpoint : Lifetime::passing);
    else if (window)
      taken->take_logged(position, position - row.length);
  }
  return Reservation(std::move(taken));
}

void RecurrentRow::adopt(Reservation reservation) noexcept {
  OUTRIDER_CHECK(
      impl_->reserved.empty() && &reservation.impl_->store == impl_->pool &&
          reservation.impl_->marks.front().position - reservation.impl_->stores.front().tokens == impl_->length,
      "a reservation of another state of the row");
  impl_->reserved.swap(reservation.impl_->marks);
  impl_->stores.swap(reservation.impl_->stores);
  std::swap(impl_->reserved_log, reservation.impl_->log);
}

RecurrentAccess RecurrentRow::access() const {
  RecurrentAccess access = {.stores = impl_->stores};
  if (impl_->reserved_log != nullptr) access.write_log = impl_->reserved_log->memory.data();
  if (impl_->marks.empty()) return access;
  const Mark& mark = impl_->marks.back();
  access.read = mark.slot->memory.data();
  if (mark.log != nullptr) access.log = {mark.log->memory.data(), mark.log_first, mark.log_tokens};
  return access;
}

void RecurrentRow::advance(std::int64_t tokens) noexcept {
  Impl& row = *impl_;
  const std::int64_t target = row.length + tokens;
  std::int64_t reached = row.length;
  std::size_t kept = 0;
  for (; kept < row.reserved.size() && row.reserved[kept].position <= target; ++kept) {
    reached = row.reserved[kept].position;
    row.marks.push_back(row.reserved[kept]);  // there is room
  }
  OUTRIDER_CHECK(tokens >= 0 && reached == target,
                 "advance to {}, where no state was stored (the last before it is {})", target, reached);
  row.reserved.erase(row.reserved.begin(), row.reserved.begin() + static_cast<std::ptrdiff_t>(kept));
  row.length = target;
  release_reserved();
  if (!in_round()) row.prune();
}

void RecurrentRow::release_reserved() noexcept {
  drop_all(*impl_->pool, impl_->reserved);
  impl_->stores.clear();
  if (SharedBuffer* log = std::exchange(impl_->reserved_log, nullptr)) impl_->pool->logs.drop_owner(log);
}

bool RecurrentRow::in_round() const { return impl_->round_begin != Impl::kNoRound; }

std::int64_t RecurrentRow::round_appended() const {
  OUTRIDER_CHECK(in_round(), "round_appended outside a round");
  return impl_->length - impl_->round_begin;
}

void RecurrentRow::round_begin() noexcept {
  OUTRIDER_CHECK(!in_round(), "round_begin inside a round");
  impl_->round_begin = impl_->length;
}

void RecurrentRow::round_commit() noexcept {
  OUTRIDER_CHECK(in_round(), "round_commit without round_begin");
  impl_->round_begin = Impl::kNoRound;
  impl_->prune();
}

void RecurrentRow::round_rollback(std::int64_t keep) noexcept {
  Impl& row = *impl_;
  OUTRIDER_CHECK(in_round(), "round_rollback without round_begin");
  OUTRIDER_CHECK(keep >= 0 && keep <= round_appended(), "round_rollback keeps {} of {} appended positions", keep,
                 round_appended());
  const std::int64_t target = row.round_begin + keep;
  OUTRIDER_CHECK(target == 0 || row.mark_at(target) != nullptr, "round_rollback to {}, where no state was stored",
                 target);
  row.round_begin = Impl::kNoRound;
  release_reserved();
  row.cut_to(target);
  row.prune();
}

std::vector<std::int64_t> RecurrentRow::stored_positions() const {
  std::vector<std::int64_t> positions;
  for (const Mark& mark : impl_->marks) positions.push_back(mark.position);
  return positions;
}

void RecurrentRow::drop_checkpoints() noexcept {
  OUTRIDER_CHECK(!in_round(), "drop_checkpoints inside a round");
  for (Mark& mark : impl_->marks) mark.lifetime = Lifetime::passing;
  impl_->prune();
}

RecurrentRow RecurrentRow::prefix(std::int64_t n) const {
  const Impl& row = *impl_;
  const std::int64_t decided = in_round() ? row.round_begin : row.length;
  OUTRIDER_CHECK(n >= 0 && n <= decided && (n == 0 || row.mark_at(n) != nullptr),
                 "prefix of {} of {} committed positions, where no state is stored", n, decided);
  RecurrentRow shared(*row.owner);
  const std::int64_t count =
      std::count_if(row.marks.begin(), row.marks.end(), [&](const Mark& mark) { return mark.position <= n; });
  shared.impl_->marks.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    shared.impl_->marks.push_back(row.marks[static_cast<std::size_t>(i)].shared());
  shared.impl_->length = n;
  return shared;
}

bool RecurrentRow::state_is_shared() const { return !impl_->marks.empty() && impl_->marks.back().slot->owners > 1; }

RecurrentRow RecurrentRow::extract() const {
  OUTRIDER_CHECK(!in_round(), "extract inside a round");
  RecurrentRow copy(*impl_->owner);
  if (length() > 0) copy.impl_->copy_state(impl_->marks.back());
  return copy;
}

std::span<const std::byte> RecurrentRow::state() const {
  if (impl_->marks.empty()) return {};
  const Mark& mark = impl_->marks.back();
  OUTRIDER_CHECK(mark.log == nullptr, "the state after {} positions is a slot and {} tokens of a log", mark.position,
                 mark.log_tokens);
  return {mark.slot->memory.data(), mark.slot->memory.size()};
}

void RecurrentRow::load(std::int64_t length, std::span<const std::byte> state) {
  Impl& row = *impl_;
  OUTRIDER_CHECK(row.length == 0 && row.reserved.empty() && !in_round() && length > 0,
                 "a state of {} positions for a row of {}", length, row.length);
  OUTRIDER_CHECK(state.size() == row.pool->slots.bytes(), "a state of {} bytes, not {}", state.size(),
                 row.pool->slots.bytes());
  row.pool->check_room(1, 0, length);
  row.marks.reserve(1);
  SharedBuffer* slot = row.pool->slots.take(BufferFill::overwritten);
  std::memcpy(slot->memory.data(), state.data(), state.size());
  row.marks.push_back({length, slot, Lifetime::passing});
  row.length = length;
}

}  // namespace outrider
