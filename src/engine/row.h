// One request inside the engine, from submit to its last event (serving.md section 0: a row).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/answer_text.h"
#include "engine/engine.h"
#include "engine/prefix_progress.h"
#include "engine/rolled_state.h"
#include "speculate/depth_controller.h"
#include "speculate/mtp_state.h"
#include "speculate/ngram_drafter.h"
#include "state/state_row.h"

namespace outrider {

using Clock = std::chrono::steady_clock;
double ms_between(Clock::time_point begin, Clock::time_point end);

// What came of a row's drafts.
struct DraftsSeen {
  std::array<std::int64_t, kMaxDraftDepth> drafted{}, accepted{};  // by place in the window
  std::int64_t rounds = 0;
  double draft_ms = 0, verify_ms = 0, commit_ms = 0;  // of the steps it decoded in

  void note(std::int64_t proposals, std::int64_t stood, const DepthController::Times& times) {
    for (std::int64_t j = 0; j < proposals; ++j) ++drafted[static_cast<std::size_t>(j)];
    for (std::int64_t j = 0; j < stood; ++j) ++accepted[static_cast<std::size_t>(j)];
    ++rounds;
    draft_ms += times.draft_ms;
    verify_ms += times.verify_ms;
    commit_ms += times.commit_ms;
  }
};

struct EngineRow {
  RequestId id = 0;
  Request request;
  std::int64_t seed = 0;
  std::vector<std::int32_t> end_tokens;  // sorted: the model's and the request's
  // Prompt, generated, and while a step runs its `drafted` proposals; capacity for the whole answer from admission on.
  std::vector<std::int32_t> tokens;
  std::int64_t drafted = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t planned_tokens = 0;  // prompt + max_tokens, fixed (models.md 2.2: the length class)
  std::int64_t planned_blocks = 0;
  int overtaken = 0;              // while queued
  std::int64_t prompt_turn = 0;   // RowDemand::turn
  std::optional<StateRow> state;  // from admission on
  std::optional<AnswerText> text;
  RowRoll roll;  // stands at the committed tokens, but while it walks over drafts or what is emitted
  Clock::time_point submitted, admitted, first_token, last_token;
  bool left = false;  // its last event is in the outbox: to be removed

  // Stored prefixes (engine/prefix_cache.h).
  std::int64_t cached_tokens = 0;        // of the prompt, whose state was restored
  std::optional<PrefixProgress> prefix;  // where the row reads and writes them
  std::optional<MtpState> draft_start;   // what it joins the draft head's group with, until it has

  // Speculation (engine/speculation.h).
  std::int64_t draft_row = -1;              // its index in the draft head's group
  std::optional<NgramDrafter> text_drafts;  // where the text's own repetitions are proposed
  std::size_t ask = 0;                      // its place in the open round
  DraftSource drafting = DraftSource::head;
  std::int64_t drafts_in_vain = 0;  // of the open round: what was asked for behind `drafted` and may not stand, 0 or 1
  AlignedBuffer draft_scores;       // SpecRule::ratio with a head: f32 [K][V], the distribution of each of its drafts
  RowAcceptance acceptance;
  DraftsSeen drafts_seen;

  std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size()) - drafted - prompt_tokens; }
  std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - state->length(); }
  bool in_prompt() const { return state->length() < prompt_tokens; }
  void drop_drafts() noexcept {
    tokens.resize(tokens.size() - static_cast<std::size_t>(drafted));
    drafted = 0;
    roll.roll_back();
  }
  bool generates() const { return request.want == Want::generate && request.max_tokens > 0; }
  // Whether the draft head follows it, from admission to its end: to draft, or for those who begin alike.
  bool keeps_drafts() const {
    return (generates() && request.draft_tokens != 0) || (request.want == Want::generate && prefix);
  }
  bool ends_with(std::int32_t id) const {
    return !request.sampling.ignore_eos && std::binary_search(end_tokens.begin(), end_tokens.end(), id);
  }
  bool by_ratio() const { return request.spec_rule == SpecRule::ratio; }
  std::span<float> scores_of_draft(std::int64_t j, std::int64_t vocab) {
    return draft_scores.as<float>().subspan(static_cast<std::size_t>(j * vocab), static_cast<std::size_t>(vocab));
  }
  // Whether the next token but `emitted` may end the row by a stop string.
  LookForStops look(std::int64_t emitted = 0) const {
    return generated() + emitted >= request.sampling.min_tokens ? LookForStops::yes : LookForStops::no;
  }

  Usage usage() const { return {prompt_tokens, generated(), cached_tokens}; }
  Timings timings(Clock::time_point now) const;
};

// The finished event of a row as it stands.
Event finished_event(const EngineRow& row, FinishReason reason);

}  // namespace outrider
