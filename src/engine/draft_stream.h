// Requests that decode side by side in an engine core of their own, stepped under a stopwatch: one way to draft, to be
// compared with others on the same model (engine/draft_bench.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core.h"

namespace outrider {

// Which proposals of the head stand, scripted: at place j the share rates[j] of those that are reached, spread as
// evenly as whole numbers allow. A proposal that shall stand is the token of `answer`, which the target is known to
// give; one that shall not is another token.
class ScriptedAcceptance final : public ProposalEditor {
 public:
  // `vocab` >= 2. `answer` is borrowed.
  ScriptedAcceptance(std::vector<double> rates, std::span<const std::int32_t> answer, std::int64_t vocab);
  std::int32_t edit(const EngineRow& row, std::int64_t t, std::int32_t proposed) override;

 private:
  struct Place {
    double rate = 0;
    std::int64_t reached = 0, right = 0;
  };
  std::vector<Place> places_;
  std::span<const std::int32_t> answer_;
  std::int64_t vocab_;
};

// What steps gave and took.
struct DraftTotals {
  std::int64_t rounds = 0, row_rounds = 0, tokens = 0;  // row_rounds: rounds times the rows in them
  double ms = 0, draft_ms = 0, verify_ms = 0;
  std::vector<std::int64_t> drafted, reached, accepted;  // by place; reached: those before it stood

  double tokens_per_s() const { return ms > 0 ? 1e3 * static_cast<double>(tokens) / ms : 0; }
  // Tokens that a row emits in a round.
  double accepted_length() const;
  // What of a round is neither drafting nor the target's step: following, settling, delivering.
  double commit_ms() const { return ms - draft_ms - verify_ms; }
  DraftTotals& operator+=(const DraftTotals& other);
};

class DraftStream {
 public:
  // model and device are borrowed; `script` may be null; `vocabulary`: as many tokens as the limits say, ascending.
  DraftStream(Model& model, Device& device, const CoreLimits& limits, std::int64_t known_tokens,
              std::vector<std::int32_t> vocabulary, std::unique_ptr<ScriptedAcceptance> script);

  // Submits the requests, no more than rows, and steps until all decode. Error (runtime) when one fails, also below.
  void begin(std::span<const Request> requests);
  // Steps until the rows have emitted `tokens` each on average, or one of them has ended.
  DraftTotals advance(std::int64_t tokens);
  struct Answer {
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> rounds;  // how many of them came in each step; the first is the prompt's
  };
  // Cancels what still runs. The answers so far, in the order of the requests.
  std::vector<Answer> end();

 private:
  struct Row {
    RequestId id = 0;
    Answer answer;
    bool ended = false;
  };
  bool step();
  bool all_decode() const;
  bool one_ended() const;

  std::unique_ptr<ScriptedAcceptance> script_;
  Core core_;
  std::int64_t depth_;
  std::vector<Row> rows_;
  std::int64_t emitted_ = 0;  // by all rows since begin()
};

}  // namespace outrider
