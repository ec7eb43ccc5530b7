// What a request keeps that moves with its tokens (runtime.md section 5): a grammar, the tokens it forces, the channel,
// a thinking budget. A window of drafts needs it at each of its positions and must be able to take it back, so it is
// rolled forwards and backwards, never copied. One object per request holds all of it: the mask it gives is the
// intersection of theirs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace outrider {

// Implemented by whoever builds requests; a row's clone is made by submit() and called by the engine thread alone.
// Everything but roll_back() and keep() may throw: the object is then as before. That is the failure of its request
// alone, at the token it was asked for; beside drafts it only ends them.
class RolledState {
 public:
  virtual ~RolledState() = default;

  // An independent object at the same place: a request carries one before its first token, each of its rows a clone.
  virtual std::unique_ptr<RolledState> clone() const = 0;
  // P6 of serving.md 2.1 behind the tokens so far: true and one bit per token id in `allowed` (mask_words() of the
  // vocabulary, bit id % 32 of word id / 32; all of them written); false: every token is, and `allowed` means nothing.
  virtual bool mask(std::span<std::uint32_t> allowed) = 0;
  // Tokens that must follow, each of them the only one its mask would leave; returns how many of `out` are filled.
  virtual std::int64_t forced(std::span<std::int32_t> out) = 0;
  // One token on. False: the token is not allowed here, and nothing has changed.
  virtual bool advance(std::int32_t id) = 0;
  // The last `count` tokens have not happened; at most those since keep().
  virtual void roll_back(std::int64_t count) noexcept = 0;
  // The tokens so far stay.
  virtual void keep() noexcept = 0;
  // Whether the answer ends with the last token: nothing may follow, and mask() is not asked.
  virtual bool complete() const = 0;
};

constexpr std::int64_t mask_words(std::int64_t vocab) { return (vocab + 31) / 32; }

inline bool is_allowed(std::span<const std::uint32_t> allowed, std::int64_t id) {
  return (allowed[static_cast<std::size_t>(id / 32)] >> (id % 32) & 1U) != 0;
}

// What a row ends with that fails in a step: engine_step_failed.
Refusal step_failed(std::string_view what);

// A row's rolled state, or none: then nothing is masked, forced or complete. Knows how far it stands ahead of the row's
// committed tokens.
class RowRoll {
 public:
  RowRoll() = default;
  explicit RowRoll(std::unique_ptr<RolledState> state) : state_(std::move(state)) {}

  explicit operator bool() const { return state_ != nullptr; }
  // The mask behind the tokens so far, written to `room`; empty: every token is allowed.
  std::span<const std::uint32_t> mask(std::span<std::uint32_t> room) {
    if (!complete()) return state_ != nullptr && state_->mask(room) ? room : room.first(0);
    std::fill(room.begin(), room.end(), 0U);
    return room;
  }
  std::int64_t forced(std::span<std::int32_t> out) { return state_ != nullptr ? state_->forced(out) : 0; }
  // False: the token is not allowed, or the answer is complete already.
  bool advance(std::int32_t id) {
    if (state_ == nullptr) return true;
    if (state_->complete() || !state_->advance(id)) return false;
    ++ahead_;
    return true;
  }
  // As mask() and advance(); what they throw, or a token that is refused, is the failure of the row.
  std::optional<Refusal> mask(std::span<std::uint32_t> room, std::span<const std::uint32_t>& allowed);
  std::optional<Refusal> enter(std::int32_t id);
  bool complete() const { return state_ != nullptr && state_->complete(); }
  // Back to the committed tokens.
  void roll_back() noexcept {
    if (state_ != nullptr && ahead_ > 0) state_->roll_back(ahead_);
    ahead_ = 0;
  }
  // The tokens so far are committed.
  void keep() noexcept {
    if (state_ != nullptr) state_->keep();
    ahead_ = 0;
  }

 private:
  std::unique_ptr<RolledState> state_;
  std::int64_t ahead_ = 0;
};

}  // namespace outrider
