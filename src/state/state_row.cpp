#include "state/state_row.h"

#include <utility>

#include "base/error.h"

namespace outrider {

StatePool::StatePool(const StateLayout& layout, const StateCapacity& capacity)
    : kv_(layout.kv, capacity.kv_blocks, capacity.prefix_blocks) {
  if (layout.recurrent.layers > 0) recurrent_.emplace(layout.recurrent, capacity.recurrent);
}

void StatePool::trim() noexcept {
  kv_.trim();
  if (recurrent_) recurrent_->trim();
}

StateRow::StateRow(StatePool& pool) : kv_(pool.kv()) {
  if (pool.recurrent() != nullptr) recurrent_.emplace(*pool.recurrent());
}

StateRow::StateRow(KvRow kv, std::optional<RecurrentRow> recurrent)
    : kv_(std::move(kv)), recurrent_(std::move(recurrent)) {
  OUTRIDER_CHECK(!recurrent_ || recurrent_->length() == kv_.length(), "{} KV positions, a recurrent state after {}",
                 kv_.length(), recurrent_->length());
  OUTRIDER_CHECK(!kv_.in_round() && (!recurrent_ || !recurrent_->in_round()), "a row from parts inside a round");
}

std::string StateRow::signature() const {
  return recurrent_ ? kv_.signature() + "+" + recurrent_->signature() : kv_.signature();
}

bool StateRow::joins(const StateRow& other) const {
  return kv_.joins(other.kv_) && recurrent_.has_value() == other.recurrent_.has_value() &&
         (!recurrent_ || recurrent_->joins(*other.recurrent_));
}

void StateRow::reserve(std::int64_t tokens, const StoreChoice& stores) {
  if (!recurrent_) return kv_.reserve(tokens);
  RecurrentRow::Reservation slots = recurrent_->prepare_reserve(tokens, stores);
  kv_.reserve(tokens);
  recurrent_->adopt(std::move(slots));
}

BatchRow StateRow::batch_row(std::int64_t begin, std::int64_t tokens, std::int64_t planned_tokens) const {
  BatchRow row = {begin, begin + tokens, length(), planned_tokens, kv_.blocks()};
  if (recurrent_) row.recurrent = recurrent_->access();
  return row;
}

void StateRow::advance(std::int64_t tokens) noexcept {
  kv_.advance(tokens);
  if (recurrent_) recurrent_->advance(tokens);
}

void StateRow::release_reserved() noexcept {
  kv_.release_reserved();
  if (recurrent_) recurrent_->release_reserved();
}

void StateRow::round_begin() noexcept {
  kv_.round_begin();
  if (recurrent_) recurrent_->round_begin();
}

void StateRow::round_commit() noexcept {
  kv_.round_commit();
  if (recurrent_) recurrent_->round_commit();
}

void StateRow::round_rollback(std::int64_t keep) noexcept {
  kv_.round_rollback(keep);
  if (recurrent_) recurrent_->round_rollback(keep);
}

void StateRow::drop_checkpoints() noexcept {
  if (recurrent_) recurrent_->drop_checkpoints();
}

StateRow StateRow::prefix(std::int64_t n) const {
  return {kv_.prefix(n), recurrent_ ? std::optional(recurrent_->prefix(n)) : std::nullopt};
}

StateRow StateRow::extract() const {
  return {kv_.extract(), recurrent_ ? std::optional(recurrent_->extract()) : std::nullopt};
}

}  // namespace outrider
