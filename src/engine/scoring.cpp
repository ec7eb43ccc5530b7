// Core's rows whose prompts are scored (Want::prompt_logprobs, Want::prompt_logits).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/core.h"
#include "engine/sampler.h"

namespace outrider {

// The prompt tokens of a scored row, head_rows at a time. They are committed already: a failure here ends the row.
void Core::score(Share& share, Tensor hidden, const Deliver& deliver) {
  EngineRow& row = *share.row;
  const bool logits_wanted = row.request.want == Want::prompt_logits;
  const std::int64_t from = row.state->length() - share.tokens;
  // The last position of the prompt predicts no prompt token.
  const std::int64_t scored = logits_wanted ? share.tokens : std::min(share.tokens, row.prompt_tokens - 1 - from);
  for (std::int64_t first = 0; first < scored; first += limits_.head_rows) {
    const Arena::Scope scope(arena_);
    Event event;
    event.kind = Event::Kind::prompt;
    event.request = row.id;
    event.position = from + first;
    try {
      score_slice(share, hidden, first, std::min(limits_.head_rows, scored - first), event);
    } catch (const std::exception& error) {
      end_row(row, FinishReason::failed,
              Refusal{fmt::format("scoring failed: {}", error.what()), "", "engine_step_failed", 500});
      return;
    }
    if (share.failed) {
      end_row(row, FinishReason::failed, numeric_error());
      return;
    }
    try {
      deliver(event);
    } catch (...) {  // the consumer's own failure: its row ends, the others are scored, step() passes it on
      if (!consumer_error_) consumer_error_ = std::current_exception();
      end_row(row, FinishReason::cancelled, std::nullopt);
      return;
    }
  }
  if (row.state->length() == row.prompt_tokens) end_row(row, FinishReason::length, std::nullopt);
}

void Core::score_slice(Share& share, Tensor hidden, std::int64_t first, std::int64_t count, Event& event) {
  std::vector<std::int64_t> picks(static_cast<std::size_t>(count));
  std::iota(picks.begin(), picks.end(), share.begin + first);
  std::vector<std::uint32_t> faults(picks.size(), 0);
  Tensor picked;
  const Tensor logits = head_of(hidden, picks, picked, faults);
  share.failed = std::any_of(faults.begin(), faults.end(), [](std::uint32_t fault) { return fault != 0; });
  if (share.failed) return;
  const auto values = static_cast<std::size_t>(count);
  if (share.row->request.want == Want::prompt_logits) {
    event.logits = {logits.data, values * static_cast<std::size_t>(logits.width)};
    event.hidden = {picked.data, values * static_cast<std::size_t>(picked.width)};
    return;
  }
  // P0 as everywhere: ids the tokenizer does not have take no probability.
  std::vector<float> max(values);
  std::vector<double> ln_sum(values);
  const Tensor known = logits.columns(0, bounds_.tokenizer_size);
  parts_.device->log_normalizers(known, max.data(), ln_sum.data());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t target = share.row->tokens[static_cast<std::size_t>(event.position + i) + 1];
    const auto at = static_cast<std::size_t>(i);
    const float z = target < bounds_.tokenizer_size ? logits.row(i)[target] : -std::numeric_limits<float>::infinity();
    event.prompt_logprobs.push_back((static_cast<double>(z) - static_cast<double>(max[at])) - ln_sum[at]);
    if (std::isnan(event.prompt_logprobs.back())) share.failed = true;  // a NaN anywhere in the row's known logits
  }
}

}  // namespace outrider
