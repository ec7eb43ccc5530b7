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
  SharedBuffers slots;

  RecurrentSlotStore(RecurrentLayout shape, BufferCapacity capacity)
      : layout(shape), slots(shape.slot_bytes(), MemoryPart::recurrent, capacity) {
    OUTRIDER_CHECK(layout.layers > 0 && layout.key_heads > 0 && layout.value_heads > 0 && layout.key_width > 0 &&
                       layout.value_width > 0 && layout.taps > 0,
                   "{} recurrent layers of {} and {} heads, {} x {}, {} taps", layout.layers, layout.key_heads,
                   layout.value_heads, layout.key_width, layout.value_width, layout.taps);
  }
  // Error (memory) unless `count` more slots fit.
  void check_room(std::int64_t count, std::int64_t tokens) const {
    if (count <= slots.free()) return;
    throw Error(ErrorKind::memory,
                fmt::format("{} more positions need {} recurrent slots of {} bytes; {} of {} are free", tokens, count,
                            slots.bytes(), slots.free(), slots.capacity()),
                "raise --memory-budget, or lower the number of rows or drafted tokens");
  }
};

namespace {

enum class Lifetime : std::uint8_t { passing, checkpoint };

// The state after `position` positions. Counts as one owner of its slot, dropped by whoever holds the mark.
struct Mark {
  std::int64_t position = 0;
  SharedBuffer* slot = nullptr;
  Lifetime lifetime = Lifetime::passing;
};

void drop_all(SharedBuffers& slots, std::vector<Mark>& marks) noexcept {
  for (const Mark& mark : marks) slots.drop_owner(mark.slot);
  marks.clear();
}

}  // namespace

RecurrentPool::RecurrentPool(RecurrentLayout layout, std::int64_t row_slots, std::int64_t prefix_slots)
    : store_(std::make_unique<RecurrentSlotStore>(layout, BufferCapacity{row_slots, prefix_slots})) {}
RecurrentPool::~RecurrentPool() = default;
const RecurrentLayout& RecurrentPool::layout() const { return store_->layout; }
std::int64_t RecurrentPool::capacity_slots() const { return store_->slots.capacity(); }
std::int64_t RecurrentPool::used_slots() const { return store_->slots.used(); }
void RecurrentPool::trim() noexcept { store_->slots.trim(); }

struct RecurrentRow::Reservation::Impl {
  SharedBuffers& slots;
  std::vector<Mark> marks;             // ascending
  std::vector<RecurrentStore> stores;  // the same, as a step takes them

  ~Impl() { drop_all(slots, marks); }
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
  std::vector<RecurrentStore> stores;  // of `reserved`

  ~Impl() {
    drop_all(pool->slots, marks);
    drop_all(pool->slots, reserved);
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
      pool->slots.drop_owner(mark.slot);
      return true;
    };
    std::erase_if(marks, passed);
  }
  void cut_to(std::int64_t position) noexcept {
    while (!marks.empty() && marks.back().position > position) {
      pool->slots.drop_owner(marks.back().slot);
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
  const bool every = choice.positions == StorePositions::every;
  const std::int64_t inside = (last - first) - (last != first && last[-1] == end ? 1 : 0);
  const std::int64_t count = every ? tokens : inside + 1;
  row.pool->check_room(count, tokens);
  auto taken = std::make_unique<Reservation::Impl>(Reservation::Impl{row.pool->slots, {}, {}});
  taken->marks.reserve(static_cast<std::size_t>(count));
  taken->stores.reserve(static_cast<std::size_t>(count));
  row.marks.reserve(row.marks.size() + static_cast<std::size_t>(count));  // advance() only moves
  auto checkpoint = first;
  const auto take = [&](std::int64_t position) {
    const bool stays = checkpoint != last && *checkpoint == position;
    if (stays) ++checkpoint;
    SharedBuffer* slot = row.pool->slots.take(BufferFill::overwritten);
    taken->marks.push_back({position, slot, stays ? Lifetime::checkpoint : Lifetime::passing});
    taken->stores.push_back({position - row.length, slot->memory.data()});
  };
  if (every)
    for (std::int64_t position = row.length + 1; position < end; ++position) take(position);
  else
    while (checkpoint != last && *checkpoint < end) take(*checkpoint);
  take(end);
  return Reservation(std::move(taken));
}

void RecurrentRow::adopt(Reservation reservation) noexcept {
  OUTRIDER_CHECK(
      impl_->reserved.empty() && &reservation.impl_->slots == &impl_->pool->slots &&
          reservation.impl_->marks.front().position - reservation.impl_->stores.front().tokens == impl_->length,
      "a reservation of another state of the row");
  impl_->reserved.swap(reservation.impl_->marks);
  impl_->stores.swap(reservation.impl_->stores);
}

RecurrentAccess RecurrentRow::access() const {
  return {impl_->marks.empty() ? nullptr : impl_->marks.back().slot->memory.data(), impl_->stores};
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
  drop_all(impl_->pool->slots, impl_->reserved);
  impl_->stores.clear();
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
  for (std::int64_t i = 0; i < count; ++i) {
    const Mark& mark = row.marks[static_cast<std::size_t>(i)];
    ++mark.slot->owners;
    shared.impl_->marks.push_back(mark);
  }
  shared.impl_->length = n;
  return shared;
}

bool RecurrentRow::state_is_shared() const { return !impl_->marks.empty() && impl_->marks.back().slot->owners > 1; }

RecurrentRow RecurrentRow::extract() const {
  OUTRIDER_CHECK(!in_round(), "extract inside a round");
  RecurrentRow copy(*impl_->owner);
  if (length() > 0) copy.load(length(), state());
  return copy;
}

std::span<const std::byte> RecurrentRow::state() const {
  if (impl_->marks.empty()) return {};
  const std::span<const std::byte> memory = impl_->marks.back().slot->memory;
  return {memory.data(), memory.size()};
}

void RecurrentRow::load(std::int64_t length, std::span<const std::byte> state) {
  Impl& row = *impl_;
  OUTRIDER_CHECK(row.length == 0 && row.reserved.empty() && !in_round() && length > 0,
                 "a state of {} positions for a row of {}", length, row.length);
  OUTRIDER_CHECK(state.size() == row.pool->slots.bytes(), "a state of {} bytes, not {}", state.size(),
                 row.pool->slots.bytes());
  row.pool->check_room(1, length);
  row.marks.reserve(1);
  SharedBuffer* slot = row.pool->slots.take(BufferFill::overwritten);
  std::memcpy(slot->memory.data(), state.data(), state.size());
  row.marks.push_back({length, slot, Lifetime::passing});
  row.length = length;
}

}  // namespace outrider
