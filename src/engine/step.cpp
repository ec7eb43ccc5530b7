// One step of Core: forward over the ragged batch, head on the rows that sample, choose, commit, score.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "engine/core.h"
#include "engine/sampler.h"

namespace outrider {

// What a row's step leads to. Building it does all that can fail; committing it moves.
struct Core::Outcome {
  std::optional<std::int32_t> token;
  Event event;  // tokens
  std::optional<FinishReason> finish;
  std::string stop_match;
  std::optional<Refusal> error;
};

// Containment (serving.md 5.3): an exception rolls every row of the attempt back to its committed state and the step is
// run again in halves until the failing row is alone. Rows of the halves that pass get the same bytes as without it.
void Core::run_shares(std::span<Share> shares, const Deliver& deliver) {
  const std::string failure = attempt(shares, deliver);
  if (failure.empty()) return;
  for (Share& share : shares) {
    share.row->kv->release_reserved();
    share.failed = false;
  }
  if (shares.size() == 1) {
    EngineRow& row = *shares[0].row;
    log(LogLevel::error, "request {} failed in a step: {}", row.id, failure);
    end_row(
        row, FinishReason::failed,
        Refusal{fmt::format("the engine step failed for this request: {}", failure), "", "engine_step_failed", 500});
    return;
  }
  log(LogLevel::warning, "a step of {} rows failed ({}); running it again in halves", shares.size(), failure);
  run_shares(shares.first(shares.size() / 2), deliver);
  run_shares(shares.subspan(shares.size() / 2), deliver);
}

// One try. Returns what failed, with nothing committed; empty: all is committed.
std::string Core::attempt(std::span<Share> shares, const Deliver& deliver) {
  const Arena::Scope scope(arena_);
  Tensor hidden;
  std::vector<Choice> choices;
  std::int64_t clamps = 0;
  try {
    hidden = forward(shares, clamps);
    mark_faults(shares);
    choose_tokens(shares, hidden, choices);
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "unknown failure";
  }
  kv_clamps_.fetch_add(clamps, std::memory_order_relaxed);  // a failed attempt runs again and counts there
  settle(shares, choices);
  for (Share& share : shares)
    if (share.scores() && !share.row->left) score(share, hidden, deliver);
  return {};
}

Tensor Core::forward(std::span<Share> shares, std::int64_t& clamps) {
  std::vector<std::int32_t> tokens;
  for (Share& share : shares) {
    share.row->kv->reserve(share.tokens);
    share.begin = static_cast<std::int64_t>(tokens.size());
    const auto from = share.row->tokens.begin() + share.row->kv->length();
    tokens.insert(tokens.end(), from, from + share.tokens);
  }
  std::vector<BatchRow> rows;
  for (const Share& share : shares)
    rows.push_back({share.begin, share.begin + share.tokens, share.row->kv->length(), share.row->planned_tokens,
                    share.row->kv->blocks()});
  faults_.assign(tokens.size(), 0);
  const Step step{*parts_.device, arena_, faults_.data(), &clamps};
  const Tensor hidden = parts_.model->forward(step, {tokens, rows});
  OUTRIDER_CHECK(hidden.rows == static_cast<std::int64_t>(tokens.size()), "hidden has {} rows for {} tokens",
                 hidden.rows, tokens.size());
  return hidden;
}

// numerics.md section 8: a fault ends its row alone, before anything of the step is committed.
void Core::mark_faults(std::span<Share> shares) {
  for (Share& share : shares)
    for (std::int64_t i = 0; i < share.tokens; ++i)
      if (faults_[static_cast<std::size_t>(share.begin + i)] != 0) share.failed = true;
}

// logits [picks,V] of the rows `picks` of hidden, in the arena; `picked` becomes their hiddens [picks,E], dense.
Tensor Core::head_of(Tensor hidden, std::span<const std::int64_t> picks, Tensor& picked,
                     std::span<std::uint32_t> faults) {
  const auto count = static_cast<std::int64_t>(picks.size());
  picked = arena_.tensor(count, hidden.width);
  const Tensor logits = arena_.tensor(count, parts_.model->declaration().vocab);
  parts_.device->gather(hidden, picks, picked);
  const Step step{*parts_.device, arena_, faults.data()};
  parts_.model->head(step, picked, logits);
  return logits;
}

// choices[i] belongs to shares[i]; those that do not sample keep id -1.
void Core::choose_tokens(std::span<Share> shares, Tensor hidden, std::vector<Choice>& choices) {
  choices.assign(shares.size(), {});
  std::vector<std::size_t> sampling;
  for (std::size_t i = 0; i < shares.size(); ++i)
    if (shares[i].samples()) sampling.push_back(i);
  const auto most = static_cast<std::size_t>(limits_.head_rows);
  for (std::size_t first = 0; first < sampling.size(); first += most) {
    const std::size_t count = std::min(most, sampling.size() - first);
    const Arena::Scope scope(arena_);
    std::vector<std::int64_t> picks(count);
    std::vector<ChoosingRow> rows(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Share& share = shares[sampling[first + i]];
      const EngineRow& row = *share.row;
      picks[i] = share.begin + share.tokens - 1;
      rows[i] = {&row.request.sampling, row.tokens, row.prompt_tokens, row.generated(), row.seed, row.end_tokens};
    }
    std::vector<std::uint32_t> faults(count, 0);
    Tensor picked;
    const Tensor logits = head_of(hidden, picks, picked, faults);
    std::vector<Choice> chosen(count);
    parts_.chooser->choose(*parts_.device, logits, rows, chosen);
    for (std::size_t i = 0; i < count; ++i) {
      if (faults[i] != 0) chosen[i].failure = numeric_error();
      choices[sampling[first + i]] = std::move(chosen[i]);
    }
  }
}

// What the chosen token means for the row: its text, its end. Throws only on this row's own account.
Core::Outcome Core::outcome_of(const Share& share, Choice& choice) {
  EngineRow& row = *share.row;
  Outcome out;
  if (share.failed || (share.samples() && !choice.failure && choice.id < 0)) choice.failure = numeric_error();
  if (choice.failure) {
    out.finish = FinishReason::failed;
    out.error = std::move(choice.failure);
    out.event.text = row.text->finish(row.look()).text;
    return out;
  }
  if (!share.samples()) {
    const bool prompt_done = row.kv->length() + share.tokens == row.prompt_tokens;
    if (row.request.want == Want::generate && prompt_done) out.finish = FinishReason::length;  // max_tokens 0
    return out;
  }
  out.token = choice.id;
  out.event.ids.push_back(choice.id);
  if (choice.logprob) out.event.logprobs.push_back(std::move(*choice.logprob));
  const bool is_end =
      std::binary_search(row.end_tokens.begin(), row.end_tokens.end(), choice.id) && !row.request.sampling.ignore_eos;
  AnswerPiece piece;
  if (is_end)
    out.finish = FinishReason::stop;
  else
    piece = row.text->push(choice.id, row.look());
  if (!is_end && row.generated() + 1 >= row.request.max_tokens) out.finish = FinishReason::length;
  if (out.finish && !piece.stop) {  // nothing more comes: held text is released, unless it ends in a stop after all
    AnswerPiece rest = row.text->finish(row.look());
    piece.text += rest.text;
    piece.stop = rest.stop;
  }
  out.event.text = std::move(piece.text);
  if (piece.stop) {
    out.finish = FinishReason::stop;
    out.stop_match = row.request.stop[*piece.stop];
  }
  return out;
}

// Commits the step row by row. All that can fail for a row happens in its outcome; its commit moves.
void Core::settle(std::span<Share> shares, std::span<Choice> choices) {
  const Clock::time_point now = Clock::now();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    Outcome out;
    try {
      out = outcome_of(shares[i], choices[i]);
    } catch (const std::exception& error) {
      out = {};
      out.finish = FinishReason::failed;
      out.error = Refusal{fmt::format("generation failed: {}", error.what()), "", "generation_failed", 500};
    }
    commit(shares[i], std::move(out), now);
  }
}

void Core::commit(const Share& share, Outcome out, Clock::time_point now) noexcept {
  EngineRow& row = *share.row;
  if (out.error)
    row.kv->release_reserved();
  else
    row.kv->advance(share.tokens);
  if (out.token) {
    if (row.generated() == 0) row.first_token = now;
    row.last_token = now;
    row.tokens.push_back(*out.token);  // within the capacity reserved at admission
    out.event.request = row.id;
    outbox_.push_back(std::move(out.event));
    out.event.text.clear();
  }
  if (out.finish)
    post_end(row, *out.finish, std::move(out.error), std::move(out.event.text), std::move(out.stop_match));
}

// The prompt tokens of a scored row, head_rows at a time. They are committed already: a failure here ends the row.
void Core::score(Share& share, Tensor hidden, const Deliver& deliver) {
  EngineRow& row = *share.row;
  const bool logits_wanted = row.request.want == Want::prompt_logits;
  const std::int64_t from = row.kv->length() - share.tokens;
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
  if (row.kv->length() == row.prompt_tokens) end_row(row, FinishReason::length, std::nullopt);
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
