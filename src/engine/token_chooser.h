// The seam between a step's logits and the tokens of its rows. The engine uses Sampler; test builds put a chooser of
// their own here (serving.md section 0: token = hash of the row's logit bytes), so that any changed bit shows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "device/device.h"
#include "engine/engine.h"

namespace outrider {

// Whether the log-probabilities a request asked for are reported: not of drafts.
enum class LogprobReport : std::uint8_t { as_asked, none };

// What a token is drawn for. target: the answer itself, with noise that drafts share. The others are of
// SpecRule::ratio.
enum class Drawing : std::uint8_t {
  target,
  draft,   // a proposal, with noise of its own
  verdict  // `draft` stands, or another token in its place
};

// One row of logits that samples. Everything is borrowed for the call.
struct ChoosingRow {
  const SamplingParams* params = nullptr;
  std::span<const std::int32_t> history;  // prompt, then the tokens generated so far
  std::int64_t prompt_tokens = 0;
  std::int64_t t = 0;  // index of the token to choose in its answer
  std::int64_t seed = 0;
  std::span<const std::int32_t> end_tokens;     // sorted: the model's and the request's
  std::span<const std::uint32_t> allowed = {};  // P6: a bit per id (engine/rolled_state.h); empty: all of them
  LogprobReport report = LogprobReport::as_asked;
  Drawing drawing = Drawing::target;
  std::int32_t draft = -1;             // verdict: what was drafted
  std::span<float> draft_scores = {};  // [V] a draft's distribution (speculate/acceptance.h): draft writes it, verdict
                                       // reads it; empty: the draft was its only token
};

struct Choice {
  std::int32_t id = -1;
  std::optional<TokenLogprob> logprob;  // when the row asked for it
  std::optional<Refusal> failure;       // this row only: numeric_error, grammar_dead_end
};

class TokenChooser {
 public:
  virtual ~TokenChooser() = default;
  // Decides out[i] from row i of logits [R,V], which may be overwritten. Nothing a row gets depends on the others.
  virtual void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) = 0;
};

}  // namespace outrider
