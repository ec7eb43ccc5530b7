// The drafts of the engine's rows (runtime.md sections 4 and 5): who proposes, how deep, and how the draft head follows
// what the target decided. Core calls it around its forward; which tokens stand is decided there.
//
// Proposals are what the row's rolled state forces; else they come from the text itself where its ending occurred
// before, and from the model's MTP head otherwise, which sees the row's masks. The rest of a draft that a mask forbids
// is cut. What stands is behind a row's tokens while a step runs, EngineRow::drafted of them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/state_change.h"
#include "engine/row.h"
#include "engine/token_chooser.h"
#include "models/model.h"
#include "speculate/draft_round.h"
#include "speculate/mtp_module.h"
#include "speculate/mtp_rows.h"

namespace outrider {

struct SpeculationLimits {
  enum class Head : std::uint8_t { use, ignore };
  std::int64_t depth = 0;                      // K, the most proposals of a row in a step; 0: no speculation
  Head head = Head::use;                       // the model's MTP head, where it has one
  DraftDepths depths = DraftDepths::measured;  // of all rows; a request may ask for fixed ones itself
  Refresh refresh = Refresh::from_target;
  NgramLimits text;
  bool drafts_text = true;           // whether the text's own repetitions are proposed
  std::int64_t vocabulary_rows = 0;  // of the target's head that drafts may be taken from beside all; 0: only all
};

// Where proposals come from without the model; tests script it. The engine's own follows EngineRow::text_drafts.
class TextDrafter {
 public:
  virtual ~TextDrafter() = default;
  // Fills `out` with what may follow row.tokens; returns how many, 0: nothing to say.
  virtual std::int64_t propose(EngineRow& row, std::span<std::int32_t> out) = 0;
  // Asked where it has nothing to say: how deep the model's head drafts instead, at most `most`.
  virtual std::int64_t head_depth(const EngineRow&, std::int64_t /*most*/) { return 0; }
};

// Puts other tokens in the place of those the head proposes, after its passes and at their cost: benches script with it
// which proposals stand.
class ProposalEditor {
 public:
  virtual ~ProposalEditor() = default;
  // What is proposed for the token of index `t` in the row's answer instead of `proposed`; row.drafted proposals of the
  // window are there already.
  virtual std::int32_t edit(const EngineRow& row, std::int64_t t, std::int32_t proposed) = 0;
};

class Speculation {
 public:
  struct Parts {
    Model* model = nullptr;
    Device* device = nullptr;
    TokenChooser* chooser = nullptr;
    std::unique_ptr<TextDrafter> drafter;  // null: the text's own repetitions, if limits.drafts_text
    ProposalEditor* editor = nullptr;      // null: the head's proposals as they are
    std::vector<std::int32_t> vocabulary;  // limits.vocabulary_rows tokens, ascending
  };
  struct Room {
    std::int64_t rows = 0, kv_blocks = 0, chunk_tokens = 0, context_tokens = 0;
    std::int64_t prefix_blocks = 0;  // of KV, for entries of a prefix store
  };
  // All of it borrowed, and limits.depth > 0.
  Speculation(Parts parts, const SpeculationLimits& limits, const Room& room);
  ~Speculation();

  // The draft vocabulary's weights, of a head that is used.
  static std::size_t weight_bytes(const Model& model, const SpeculationLimits& limits);
  // What its arena pieces add to the model's, what a row keeps beside its KV, and a block of the head's KV; 0 without a
  // head.
  static std::size_t scratch_bytes(const Model& model, const Device& device, const SpeculationLimits& limits,
                                   const Room& room);
  static std::size_t row_bytes(const Model& model, const SpeculationLimits& limits, std::int64_t row_tokens);
  static std::size_t block_bytes(const Model& model, const SpeculationLimits& limits);

  // Rows join as EngineRow::draft_start says, or with nothing processed. Throws: none has joined.
  void admit(std::span<EngineRow* const> rows);
  // Rows with `left` set retire. Throws: none has.
  void retire();

  // Opens the round of the rows that decode, with their drafts. Throws: no row is in a round; the failure counts
  // against the heads of those at fault.
  void propose(const Step& step, std::span<EngineRow* const> rows);
  // Ends what is left of the round.
  void abort() noexcept { round_.abort(); }

  // What the target made of a row: it keeps `tokens` of those it processed, `context` [>= tokens, E] are its hiddens.
  struct Followed {
    EngineRow* row = nullptr;
    std::span<const std::int32_t> tokens;
    Tensor context;
    bool failed = false;  // out: the row's head could not follow; the target must not commit it in this step
  };
  // Lets the head follow rows of the round and prompts: prepares all that can fail, for the caller to commit. Throws:
  // nothing has changed.
  std::vector<PreparedStateChange> prepare_follow(const Step& step, std::span<Followed> rows);

  // Outside a round: the head's KV of the row's first n processed tokens, shared with it; nothing where the row has
  // lost its head or keeps other bytes than a prefill of these tokens would give. Throws: the row is as before.
  std::optional<KvRow> draft_prefix(const Step& step, const EngineRow& row, std::int64_t n);
  KvPool* draft_pool() const { return pool_.get(); }  // null without a head

  // After the round: what stood of the drafts of each of its rows, and the times.
  struct Outcome {
    EngineRow* row = nullptr;
    std::int64_t drafted = 0, accepted = 0;
  };
  void observe(std::span<const Outcome> rows, const DepthController::Times& times, DepthController::Prompts prompts);

  bool has_head() const { return mtp_ != nullptr; }
  const DepthController::Counters& counters() const { return controller_.counters(); }
  // Rows that lost their head by failing, and whether the guard took it from all: none of the first kGuardDrafts tokens
  // it drafted was accepted (models.md 4.6).
  std::int64_t rows_without_head() const { return rows_without_head_ + (mtp_ ? mtp_->rows_without_head() : 0); }
  bool gave_head_up() const { return gave_head_up_; }
  static constexpr std::int64_t kGuardDrafts = 200;

 private:
  class Port;
  std::int64_t deepest(const EngineRow& row) const;
  bool drafts_by_head(const EngineRow& row) const;
  using Forced = std::array<std::int32_t, kMaxDraftDepth>;
  bool is_fixed(const EngineRow& row) const;
  void guard_head();
  std::vector<std::int64_t> plan(std::span<EngineRow* const> rows, std::span<Forced> forced);
  void place_drafts(std::span<EngineRow* const> rows, std::span<const DraftRound::Ask> asks);

  Parts parts_;
  SpeculationLimits limits_;
  DepthController controller_;
  std::int64_t arm_ = 0;                               // 0: all of the target's head, 1: the draft vocabulary
  std::int64_t head_drafted_ = 0, head_accepted_ = 0;  // tokens, of all rows
  std::int64_t rows_without_head_ = 0;                 // of a head that was given up
  bool gave_head_up_ = false;
  std::vector<EngineRow*> rows_;  // of the head's group, by EngineRow::draft_row
  std::optional<DraftVocabulary> vocabulary_;
  std::optional<MtpModule> module_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<MtpRows> mtp_;
  DraftRound round_;
};

}  // namespace outrider
