// Test support: a rolled state whose mask is a hash of exactly the tokens it has been told of. One token too many, too
// few or in another order gives other masks.
#pragma once

#include <memory>
#include <vector>

#include "engine/rolled_state.h"
#include "engine/scripted_model.h"

namespace outrider {

struct RollScript {
  std::int64_t vocab = 61;
  std::uint64_t salt = 0;
  std::uint64_t forces = 4;        // of 8 positions so many leave one token
  std::int64_t completes_at = -1;  // tokens after which the answer is complete
  std::int64_t dead_at = -1;       // tokens after which nothing is allowed
  std::int64_t throws_at = -1;     // tokens after which mask() throws
};

class ScriptedRoll : public RolledState {
 public:
  explicit ScriptedRoll(const RollScript& script) : script_(script), hash_(mix(script.salt)) { before_.reserve(64); }

  std::unique_ptr<RolledState> clone() const override { return std::make_unique<ScriptedRoll>(*this); }

  bool mask(std::span<std::uint32_t> allowed) override {
    fallible_point("ScriptedRoll::mask");
    OUTRIDER_CHECK(!complete() && std::ssize(allowed) == mask_words(script_.vocab));
    if (count() == script_.throws_at) throw std::runtime_error("scripted failure of a mask");
    if (kind() == Kind::open) return false;
    std::fill(allowed.begin(), allowed.end(), 0U);
    for (std::int32_t id = 0; id < script_.vocab; ++id)
      if (allows(id)) allowed[static_cast<std::size_t>(id / 32)] |= 1U << (id % 32);
    return true;
  }
  std::int64_t forced(std::span<std::int32_t> out) override {
    fallible_point("ScriptedRoll::forced");
    ScriptedRoll ahead = *this;
    std::int64_t filled = 0;
    while (filled < std::ssize(out) && !ahead.complete() && ahead.kind() == Kind::forced) {
      const std::int32_t id = ahead.only();
      out[static_cast<std::size_t>(filled++)] = id;
      ahead.advance(id);
    }
    return filled;
  }
  bool advance(std::int32_t id) override {
    fallible_point("ScriptedRoll::advance");
    if (!allows(id)) return false;
    before_.push_back(hash_);
    hash_ = mix(hash_ * 3 + static_cast<std::uint64_t>(id));
    return true;
  }
  void roll_back(std::int64_t count) noexcept override {
    OUTRIDER_CHECK(count <= std::ssize(before_), "{} tokens back of {}", count, before_.size());
    if (count == 0) return;
    hash_ = before_[before_.size() - static_cast<std::size_t>(count)];
    before_.resize(before_.size() - static_cast<std::size_t>(count));
  }
  void keep() noexcept override {
    kept_ += std::ssize(before_);
    before_.clear();
  }
  bool complete() const override { return count() == script_.completes_at; }

 private:
  enum class Kind { open, forced, some, dead };
  std::int64_t count() const { return kept_ + std::ssize(before_); }
  Kind kind() const {
    if (count() == script_.dead_at) return Kind::dead;
    const std::uint64_t roll = mix(hash_ + 1) % 8;
    return roll == 7 ? Kind::open : roll < script_.forces ? Kind::forced : Kind::some;
  }
  std::int32_t only() const {
    return static_cast<std::int32_t>(mix(hash_ + 2) % static_cast<std::uint64_t>(script_.vocab));
  }
  bool allows(std::int32_t id) const {
    if (kind() == Kind::open) return true;
    if (kind() == Kind::dead) return false;
    return id == only() || (kind() == Kind::some && mix(hash_ + 3 + static_cast<std::uint64_t>(id)) % 8 == 0);
  }

  RollScript script_;
  std::uint64_t hash_;
  std::vector<std::uint64_t> before_;  // of the tokens since keep()
  std::int64_t kept_ = 0;
};

}  // namespace outrider
