// What is asked of the engine and what it answers (serving.md sections 2, 3 and 7): requests, sampling, events.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace outrider {

enum class SamplerOrder : std::uint8_t { mlx, temperature_first };
enum class PenaltyScope : std::uint8_t { all, generated };
enum class LogprobsMode : std::uint8_t { processed, raw };

// serving.md section 2, field for field; the initial values are "off" or the built-in defaults.
struct SamplingParams {
  double temperature = 0, top_p = 1, min_p = 0;
  std::int64_t top_k = 0, min_tokens_to_keep = 1;
  double xtc_probability = 0, xtc_threshold = 0.1;
  double repetition_penalty = 0, presence_penalty = 0, frequency_penalty = 0;
  std::int64_t repetition_context_size = 20, presence_context_size = 0, frequency_context_size = 0;
  PenaltyScope repetition_scope = PenaltyScope::all, presence_scope = PenaltyScope::generated,
               frequency_scope = PenaltyScope::generated;
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // -inf bans
  std::int64_t min_tokens = 0;
  bool ignore_eos = false;
  SamplerOrder order = SamplerOrder::mlx;
  std::optional<std::int64_t> seed;  // absent: drawn from the system, reported back
  std::uint32_t choice = 0;
  bool logprobs = false;
  int top_logprobs = 0;  // 0..20
  LogprobsMode logprobs_mode = LogprobsMode::processed;
};

enum class Want : std::uint8_t { generate, prompt_logprobs, prompt_logits };

// Which drafted tokens stand (serving.md section 3). automatic: greedy at temperature 0, coupled above it: the text is
// that without drafts. ratio, above temperature 0: the distribution is, and the text depends on the drafts.
enum class SpecRule : std::uint8_t { automatic, greedy, coupled, ratio };
// How deep a row drafts: where measurements say that it pays, or always as deep as it may, which `ratio` needs to give
// the same answer for the same seed.
enum class DraftDepths : std::uint8_t { measured, fixed };

class RolledState;  // engine/rolled_state.h

struct Request {
  std::vector<std::int32_t> ids;  // the prompt, at least one token
  std::int64_t max_tokens = 512;  // 0: evaluate the prompt only
  SamplingParams sampling;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool include_stop = false;
  std::optional<std::int64_t> draft_tokens;  // most drafts of a step; absent: what was loaded with, which is the most
  SpecRule spec_rule = SpecRule::automatic;
  DraftDepths draft_depths = DraftDepths::measured;
  std::shared_ptr<const RolledState> rolled;  // grammar, forced tokens, channel; may be null
  Want want = Want::generate;
  bool cache_prompt = true;                // stored prefixes are used and the own one is stored; not when scored
  std::vector<std::int64_t> prefix_marks;  // ascending: where other prompts may part from this one (message_ends())
};

using RequestId = std::uint64_t;
enum class FinishReason : std::uint8_t { stop, length, cancelled, failed };
std::string_view name_of(FinishReason reason);

struct TokenLogprob {
  std::int32_t id = 0;
  double logprob = 0;
  std::vector<std::pair<std::int32_t, double>> top;  // descending, ties by id
};

// serving.md section 7 `timings`; milliseconds. predicted_ms runs from the first token to the last, so its rate counts
// the predicted_n - 1 tokens after the first. cache_n: prompt tokens whose state was restored; prompt_n: the others.
struct Timings {
  double queue_ms = 0, prompt_ms = 0, ttft_ms = 0, predicted_ms = 0;
  std::int64_t cache_n = 0, prompt_n = 0, predicted_n = 0;
  double prompt_per_second = 0, predicted_per_second = 0;
  // Drafts: proposed and accepted; of the proposals at each of the first `depths` places of a window the share that
  // stood; the time of the steps the row decoded in.
  std::int64_t draft_n = 0, draft_n_accepted = 0;
  std::size_t depths = 0;
  std::array<double, 8> accepted_per_depth{};
  std::int64_t rounds = 0;  // steps it decoded in
  double draft_ms = 0, verify_ms = 0, commit_ms = 0;
};

struct Usage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

// What step() delivers. Spans are borrowed for the duration of the call.
struct Event {
  enum class Kind : std::uint8_t { tokens, prompt, finished };
  Kind kind = Kind::tokens;
  RequestId request = 0;
  std::string text;                          // tokens: new text, whole characters, stop strings held back
  std::vector<std::int32_t> ids;             // tokens: new ids, end tokens included
  std::vector<TokenLogprob> logprobs;        // tokens: one per id, when asked
  std::vector<double> prompt_logprobs;       // prompt: log p(ids[i+1]) of the positions of this chunk
  std::int64_t position = 0;                 // prompt: absolute position of the first row below
  std::span<const float> logits, hidden;     // prompt: [n,V] and [n,E] (pre-norm), Want::prompt_logits
  FinishReason finish = FinishReason::stop;  // finished
  std::string stop_match;                    // finished: the stop string that matched
  std::optional<Refusal> error;              // finished with FinishReason::failed
  Usage usage;
  Timings timings;
  std::int64_t seed = 0;
};

}  // namespace outrider
