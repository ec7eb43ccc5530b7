// The engine without files: a model, a device and a way to choose tokens make requests into answers. Engine::load wraps
// it; tests build it around scripted models.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/request_check.h"
#include "engine/row.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"
#include "engine/token_chooser.h"
#include "models/model.h"

namespace outrider {

struct CoreParts {
  Model* model = nullptr;                // borrowed
  Device* device = nullptr;              // borrowed
  const Tokenizer* tokenizer = nullptr;  // borrowed; null: raw ids, no text
  std::unique_ptr<TokenChooser> chooser;
  std::vector<std::int32_t> end_tokens;
  std::unique_ptr<TextDrafter> drafter = nullptr;   // of tests: see Speculation::Parts
  ProposalEditor* editor = nullptr;                 // of benches, borrowed: see Speculation::Parts
  std::string model_key = {};                       // PrefixCache: which files, heads and rules make the states
  std::vector<std::int32_t> draft_vocabulary = {};  // limits.speculation.vocabulary_rows tokens, ascending
};

struct CoreLimits {
  ScheduleLimits schedule;
  SpeculationLimits speculation;
  std::int64_t head_rows = 32;  // rows of logits computed at once
  std::int64_t context_tokens = 0;
  std::uint64_t prefix_bytes = 0;  // that stored prefixes may take; 0: none are
};

using Deliver = std::function<void(const Event&)>;

class Core {
 public:
  Core(CoreParts parts, const CoreLimits& limits);
  ~Core();

  // As Engine: submit() and cancel() from any thread, step() from one.
  Result<RequestId> submit(Request request);
  void cancel(RequestId id);
  bool step(const Deliver& deliver);

  static StepLimits step_limits(const CoreLimits& limits);
  static Speculation::Room draft_room(const CoreLimits& limits);
  // Bytes of the arena a step takes its pieces from.
  static std::size_t scratch_bytes(const Model& model, const Device& device, const CoreLimits& limits);
  // What the rows need of recurrent state: each the committed slot and that of its step, with logs for their windows.
  static RecurrentCapacity recurrent_capacity(const CoreLimits& limits) {
    const std::int64_t both = 2 * limits.schedule.rows, depth = limits.speculation.depth;
    return {.row_slots = both, .row_logs = depth > 0 ? both : 0, .log_tokens = depth};
  }
  const StatePool& state_pool() const { return pool_; }
  const Speculation* speculation() const { return speculation_.get(); }  // null: off
  const PrefixCache* prefix_cache() const { return prefix_.get(); }      // null: off
  std::size_t scratch_peak() const { return arena_.peak(); }
  // As Engine: from any thread.
  std::int64_t kv_clamps() const { return kv_clamps_.load(std::memory_order_relaxed); }

 private:
  // A row and the tokens it runs in this step.
  struct Share {
    EngineRow* row = nullptr;
    std::int64_t tokens = 0;
    std::int64_t begin = 0;         // its first flat token
    std::int64_t position = 0;      // absolute, of that token
    bool failed = false;            // faulted in this step: nothing of it is committed
    std::int64_t first_fault = -1;  // in a window: its first token whose values are not finite
    bool fails = false;             // a choice it reaches has failed: its row ends
    bool postponed = false;         // its draft head could not follow: it runs again in the next step
    std::size_t first_choice = 0;   // of its choices: one behind the prompt or the pending token, one behind each draft
    std::int64_t accepted = 0;      // drafts that the target chose too
    bool decodes() const { return !row->in_prompt() && row->generates(); }
    bool samples() const { return !failed && row->generates() && tokens == row->pending(); }
    std::int64_t choices() const { return samples() ? 1 + row->drafted : 0; }
    bool scores() const { return !failed && row->request.want != Want::generate; }
  };
  struct Outcome;

  // core.cpp: the life of a request.
  void take_news();
  void admit_waiting();
  std::vector<Share> plan_shares();
  void end_row(EngineRow& row, FinishReason reason, std::optional<Refusal> error) noexcept;
  void post_end(EngineRow& row, FinishReason reason, std::optional<Refusal> error, std::string rest,
                std::string stop_match) noexcept;
  void remove_left();
  void deliver_outbox(const Deliver& deliver);

  // step.cpp: one forward and what follows from it.
  void run_shares(std::span<Share> shares, const Deliver& deliver);
  enum class Failure : std::uint8_t { none, of_drafts, of_step };
  struct Attempt {
    Failure failure = Failure::none;
    std::string what;
  };
  Attempt attempt(std::span<Share> shares, const Deliver& deliver);
  void propose(std::span<Share> shares);
  void roll_back(std::span<Share> shares) noexcept;
  Tensor context_of(Tensor hidden);
  std::vector<PreparedStateChange> prepare_follow(std::span<Share> shares, Tensor context);
  void plan_checkpoints(std::span<Share> shares);
  void publish(std::span<Share> shares, Tensor context) noexcept;
  void observe(std::span<const Share> shares);
  Tensor forward(std::span<Share> shares);
  void mark_faults(std::span<Share> shares);
  void choose_tokens(std::span<Share> shares, Tensor hidden, std::vector<Choice>& choices);
  void mask_choices(std::span<ChoosingRow> rows, std::span<EngineRow* const> whose,
                    std::span<std::optional<Refusal>> broken);
  void accept(Share& share, std::span<const Choice> choices) const;
  void settle(std::span<Share> shares, std::span<Choice> choices);
  Outcome outcome_of(const Share& share, std::span<Choice> choices);
  static void emit(EngineRow& row, Choice& choice, Outcome& out);
  void commit(const Share& share, Outcome out, Clock::time_point now) noexcept;
  Tensor head_of(Tensor hidden, std::span<const std::int64_t> picks, Tensor& picked, std::span<std::uint32_t> faults);

  // scoring.cpp: prompts whose tokens are scored.
  void score(Share& share, Tensor hidden, const Deliver& deliver);
  void score_slice(Share& share, Tensor hidden, std::int64_t first, std::int64_t count, Event& event);

  CoreParts parts_;
  CoreLimits limits_;
  RequestBounds bounds_;
  PrefixCapacity prefixes_;  // none: nothing is stored
  StatePool pool_;
  Arena arena_;
  std::unique_ptr<Speculation> speculation_;
  std::unique_ptr<PrefixCache> prefix_;     // borrows both of the above
  std::atomic<std::int64_t> kv_clamps_{0};  // of committed tokens
  std::int64_t prompt_turns_ = 0;           // plan_step()
  std::vector<std::uint32_t> faults_;       // [T] of the running step
  std::vector<std::int64_t> clamps_;        // [T] of the running step
  DepthController::Times times_;            // of the running step

  std::atomic<RequestId> next_id_{1};
  std::mutex news_mutex_;
  std::vector<std::unique_ptr<EngineRow>> new_rows_;
  std::vector<RequestId> new_cancels_;

  std::vector<std::unique_ptr<EngineRow>> queue_, active_;  // both in order of arrival
  std::vector<Event> outbox_;                               // committed, not yet delivered
  std::exception_ptr consumer_error_;                       // thrown by `deliver` while scoring
};

}  // namespace outrider
