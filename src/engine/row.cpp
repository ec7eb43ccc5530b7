#include "engine/row.h"

namespace outrider {

double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

namespace {

double per_second(std::int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) * 1000 / ms : 0; }

}  // namespace

// prompt_ms ends with the first token (or with the prompt, when none is generated); predicted_ms runs from there, so
// that its rate counts the tokens after the first: one decode step each.
Timings EngineRow::timings(Clock::time_point now) const {
  Timings t;
  const bool was_admitted = state.has_value();
  t.queue_ms = ms_between(submitted, was_admitted ? admitted : now);
  if (!was_admitted) return t;
  const bool answered = generated() > 0;
  t.cache_n = cached_tokens;
  t.prompt_n = std::min(state->length(), prompt_tokens) - cached_tokens;
  t.prompt_ms = ms_between(admitted, answered ? first_token : now);
  t.prompt_per_second = per_second(t.prompt_n, t.prompt_ms);
  if (!answered) return t;
  t.ttft_ms = ms_between(submitted, first_token);
  t.predicted_n = generated();
  t.predicted_ms = ms_between(first_token, last_token);
  t.predicted_per_second = per_second(t.predicted_n - 1, t.predicted_ms);
  t.draft_ms = drafts_seen.draft_ms;
  t.verify_ms = drafts_seen.verify_ms;
  t.commit_ms = drafts_seen.commit_ms;
  t.rounds = drafts_seen.rounds;
  static_assert(std::tuple_size_v<decltype(t.accepted_per_depth)> == kMaxDraftDepth);
  for (std::size_t& j = t.depths; j < drafts_seen.drafted.size() && drafts_seen.drafted[j] > 0; ++j) {
    t.draft_n += drafts_seen.drafted[j];
    t.draft_n_accepted += drafts_seen.accepted[j];
    t.accepted_per_depth[j] =
        static_cast<double>(drafts_seen.accepted[j]) / static_cast<double>(drafts_seen.drafted[j]);
  }
  return t;
}

Event finished_event(const EngineRow& row, FinishReason reason) {
  Event event;
  event.kind = Event::Kind::finished;
  event.request = row.id;
  event.finish = reason;
  event.usage = row.usage();
  event.timings = row.timings(Clock::now());
  event.seed = row.seed;
  return event;
}

}  // namespace outrider
