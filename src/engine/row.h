// One request inside the engine, from submit to its last event (serving.md section 0: a row).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/answer_text.h"
#include "engine/engine.h"
#include "state/kv_row.h"

namespace outrider {

using Clock = std::chrono::steady_clock;

struct EngineRow {
  RequestId id = 0;
  Request request;
  std::int64_t seed = 0;
  std::vector<std::int32_t> end_tokens;  // sorted: the model's and the request's
  std::vector<std::int32_t> tokens;      // prompt, then generated; capacity for the whole answer from admission on
  std::int64_t prompt_tokens = 0;
  std::int64_t planned_tokens = 0;  // prompt + max_tokens, fixed (models.md 2.2: the length class)
  std::int64_t planned_blocks = 0;
  int overtaken = 0;             // while queued
  std::int64_t prompt_turn = 0;  // RowDemand::turn
  std::optional<KvRow> kv;       // from admission on
  std::optional<AnswerText> text;
  Clock::time_point submitted, admitted, first_token, last_token;
  bool left = false;  // its last event is in the outbox: to be removed

  std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size()) - prompt_tokens; }
  std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - kv->length(); }
  bool in_prompt() const { return kv->length() < prompt_tokens; }
  bool generates() const { return request.want == Want::generate && request.max_tokens > 0; }
  LookForStops look() const {
    return generated() >= request.sampling.min_tokens ? LookForStops::yes : LookForStops::no;
  }

  Usage usage() const { return {prompt_tokens, generated(), 0}; }
  Timings timings(Clock::time_point now) const;
};

// The finished event of a row as it stands.
Event finished_event(const EngineRow& row, FinishReason reason);

}  // namespace outrider
