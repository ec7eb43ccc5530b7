// The prefix store in the engine (serving.md section 6): what a row is restored from when it is admitted, where it
// leaves checkpoints for others, and the offer of what each step has committed.
//
// Rows have their planned KV blocks and slots to themselves, the store has its own beside them, so neither waits for
// the other. A failure here is never a request's: it begins cold, or leaves nothing behind, and the failure is counted.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/row.h"
#include "engine/speculation.h"
#include "models/model.h"
#include "state/prefix_store.h"

namespace outrider {

// Raised whenever numerics.md or its implementation gives other bytes for the same request: stored state is then no
// longer what a cold run computes.
inline constexpr int kNumericsVersion = 1;

// What makes stored state of one loaded model what it is, beside its tokens: its files and their reading (`files`, a
// fingerprint), precision, KV rows, draft head and numerics.
std::string prefix_model_key(std::string_view files, Precision precision, const Model& model);

// Where a prompt leaves checkpoints, ascending multiples of 64 in (0, prompt_tokens - 1], at most `most` of them. By
// importance: the last such multiple; the multiples at or before the latest `marks` and the first; then positions whose
// distance from the end doubles from kFirstSpacing on.
inline constexpr std::int64_t kFirstSpacing = 256;  // nearer ones would save less time than their memory is worth
std::vector<std::int64_t> checkpoint_positions(std::int64_t prompt_tokens, std::span<const std::int64_t> marks,
                                               std::int64_t most);

class PrefixCache {
 public:
  // Borrows all three; speculation: null without.
  PrefixCache(const Model& model, StatePool& pool, Speculation* speculation, const PrefixParts& parts,
              const PrefixCapacity& capacity, std::string model_key);

  static PrefixParts parts_of(const Model& model, const SpeculationLimits& limits);

  // The longest stored beginning of a row that is admitted becomes its state and draft_start.
  void begin(EngineRow& row) noexcept;

  // Before a step: sets PrefixProgress::due of rows that run `tokens` tokens, and makes room for those checkpoints.
  struct Span {
    EngineRow* row = nullptr;
    std::int64_t tokens = 0;
  };
  void plan(std::span<const Span> spans);

  // After a step's commit: offers what the row has reached. hiddens [tokens, E]: with a draft head, the target's of
  // the positions from `position` on, as the head reads them.
  void publish(const Step& step, EngineRow& row, std::int64_t position, Tensor hiddens) noexcept;

  const PrefixStore& store() const { return *store_; }
  std::int64_t failures() const { return failures_; }  // restores and offers that were given up

 private:
  void give_up(const EngineRow& row, std::string_view what, const std::exception& error) noexcept;
  void restore(EngineRow& row);
  void forget_head();
  void offer(const Step& step, EngineRow& row, std::int64_t position, Tensor hiddens);

  const Model& model_;
  StatePool& pool_;
  Speculation* speculation_;
  std::string model_key_;
  std::optional<PrefixStore> store_;  // there from the constructor on
  std::int64_t failures_ = 0;
};

}  // namespace outrider
