// One step of Core: forward over the ragged batch, head on the rows that sample, choose, commit, score.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/failure_injection.h"
#include "base/log.h"
#include "engine/core.h"
#include "engine/sampler.h"
#include "speculate/acceptance.h"

namespace outrider {

// What a row's step leads to. Building it does all that can fail; committing it moves.
struct Core::Outcome {
  Event event;  // the tokens that are emitted
  std::optional<FinishReason> finish;
  std::string stop_match;
  std::optional<Refusal> error;
};

// Containment (serving.md 5.3): an exception rolls every row of the attempt back to its committed state and the step is
// run again in halves until the failing row is alone. Rows of the halves that pass get the same bytes as without it.
// The drafts of a row that fail when it is alone count against its draft head: it runs again until that gives up
// (runtime.md section 7).
void Core::run_shares(std::span<Share> shares, const Deliver& deliver) {
  Attempt tried = attempt(shares, deliver);
  for (int again = 0; shares.size() == 1 && tried.failure == Failure::of_drafts && again < MtpRows::kMaxFailures;
       ++again) {
    log(LogLevel::warning, "the drafts of a step failed ({}); running it again", tried.what);
    tried = attempt(shares, deliver);
  }
  if (tried.failure == Failure::none) return;
  if (shares.size() == 1) {
    EngineRow& row = *shares[0].row;
    log(LogLevel::error, "request {} failed in a step: {}", row.id, tried.what);
    end_row(row, FinishReason::failed, step_failed(tried.what));
    return;
  }
  log(LogLevel::warning, "a step of {} rows failed ({}); running it again in halves", shares.size(), tried.what);
  run_shares(shares.first(shares.size() / 2), deliver);
  run_shares(shares.subspan(shares.size() / 2), deliver);
}

// One try: draft, one forward over windows, decodes and prompt chunks, choose, accept, commit (runtime.md section 5).
// On a failure nothing is committed.
Core::Attempt Core::attempt(std::span<Share> shares, const Deliver& deliver) {
  const Arena::Scope scope(arena_);
  Tensor hidden, context;
  std::vector<Choice> choices;
  std::vector<PreparedStateChange> changes;
  times_ = {};
  Failure stage = Failure::of_drafts;
  const Clock::time_point begin = Clock::now();
  try {
    propose(shares);
    fallible_point("Core: drafted");
    times_.draft_ms = ms_between(begin, Clock::now());
    stage = Failure::of_step;
    hidden = forward(shares);
    fallible_point("Core: forwarded");
    mark_faults(shares);
    choose_tokens(shares, hidden, choices);
    fallible_point("Core: chosen");
    for (Share& share : shares) accept(share, choices);
    stage = Failure::of_drafts;
    const Clock::time_point judged = Clock::now();
    context = context_of(hidden);
    changes = prepare_follow(shares, context);
    fallible_point("Core: followed");
    stage = Failure::of_step;
    times_.commit_ms = ms_between(judged, Clock::now());
    times_.verify_ms = ms_between(begin, judged) - times_.draft_ms;
    observe(shares);
  } catch (const std::exception& error) {
    changes.clear();
    roll_back(shares);
    return {stage, *error.what() != '\0' ? error.what() : "unknown failure"};
  }
  settle(shares, choices);
  for (PreparedStateChange& change : changes) change.commit();
  changes.clear();
  roll_back(shares);  // what did not commit: faulted and postponed rows
  publish(shares, context);
  for (Share& share : shares)
    if (share.scores() && !share.row->left) score(share, hidden, deliver);
  return {};
}

// Rows that decode get their drafts.
void Core::propose(std::span<Share> shares) {
  std::vector<EngineRow*> rows;
  for (Share& share : shares) {
    share.failed = share.fails = share.postponed = false;
    share.first_fault = -1;
    if (share.decodes()) rows.push_back(share.row);
  }
  if (speculation_ && !rows.empty()) {
    const Step step{*parts_.device, arena_};
    speculation_->propose(step, rows);
  }
  for (Share& share : shares)
    if (share.decodes()) share.tokens = 1 + share.row->drafted;
}

// Takes back what an attempt left with its rows: reservations, drafts, rounds.
void Core::roll_back(std::span<Share> shares) noexcept {
  for (const Share& share : shares) {
    share.row->state->release_reserved();
    share.row->drop_drafts();
  }
  if (speculation_) speculation_->abort();
}

// Where the rows of a step leave states for others.
void Core::plan_checkpoints(std::span<Share> shares) {
  if (!prefix_) return;
  std::vector<PrefixCache::Span> spans;
  for (const Share& share : shares) spans.push_back({share.row, share.tokens});
  prefix_->plan(spans);
}

// What the rows have committed is offered to others. Only the offer may fail.
void Core::publish(std::span<Share> shares, Tensor context) noexcept {
  if (!prefix_) return;
  const Step step{*parts_.device, arena_};
  for (const Share& share : shares)
    prefix_->publish(step, *share.row, share.position,
                     speculation_ && speculation_->has_head() ? context.slice(share.begin, share.tokens) : Tensor{});
}

Tensor Core::forward(std::span<Share> shares) {
  plan_checkpoints(shares);
  std::vector<std::int32_t> tokens;
  for (Share& share : shares) {
    const bool window = share.row->drafted > 0;
    const std::span<const std::int64_t> due =
        share.row->prefix ? std::span<const std::int64_t>(share.row->prefix->due) : std::span<const std::int64_t>();
    share.row->state->reserve(share.tokens, {window ? StorePositions::every : StorePositions::at_end, due});
    share.begin = static_cast<std::int64_t>(tokens.size());
    share.position = share.row->state->length();
    const auto from = share.row->tokens.begin() + share.row->state->length();
    tokens.insert(tokens.end(), from, from + share.tokens);
  }
  std::vector<BatchRow> rows;
  for (const Share& share : shares)
    rows.push_back(share.row->state->batch_row(share.begin, share.tokens, share.row->planned_tokens));
  faults_.assign(tokens.size(), 0);
  clamps_.assign(tokens.size(), 0);
  const Step step{*parts_.device, arena_, faults_.data(), clamps_.data()};
  const Tensor hidden = parts_.model->forward(step, {tokens, rows});
  OUTRIDER_CHECK(hidden.rows == static_cast<std::int64_t>(tokens.size()), "hidden has {} rows for {} tokens",
                 hidden.rows, tokens.size());
  return hidden;
}

// numerics.md section 8: a fault ends its row alone, before anything of the step is committed. In a window it does so
// only if the row gets there: a draft that does not stand has not happened.
void Core::mark_faults(std::span<Share> shares) {
  for (Share& share : shares)
    for (std::int64_t i = share.tokens - 1; i >= 0; --i) {
      if (faults_[static_cast<std::size_t>(share.begin + i)] == 0) continue;
      share.first_fault = i;
      share.failed = !share.decodes();
    }
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

// A choice behind each token that samples: the last of a prompt, and every token of a window, with the drafts before it
// in its history.
void Core::choose_tokens(std::span<Share> shares, Tensor hidden, std::vector<Choice>& choices) {
  std::vector<std::int64_t> picks;
  std::vector<ChoosingRow> rows;
  std::vector<EngineRow*> whose;
  for (Share& share : shares) {
    share.first_choice = picks.size();
    EngineRow& row = *share.row;
    const std::int64_t known = std::ssize(row.tokens) - row.drafted;
    for (std::int64_t j = 0; j < share.choices(); ++j) {
      picks.push_back(share.begin + share.tokens - share.choices() + j);
      const auto history = std::span(row.tokens).first(static_cast<std::size_t>(known + j));
      rows.push_back(
          {&row.request.sampling, history, row.prompt_tokens, row.generated() + j, row.seed, row.end_tokens});
      whose.push_back(&row);
      if (!row.by_ratio() || j == row.drafted) continue;
      rows.back().drawing = Drawing::verdict;
      rows.back().draft = row.tokens[static_cast<std::size_t>(known + j)];
      if (row.drafting == DraftSource::head)
        rows.back().draft_scores = row.scores_of_draft(j, parts_.model->declaration().vocab);
    }
  }
  choices.assign(picks.size(), {});
  std::vector<std::optional<Refusal>> broken(picks.size());  // rolled states: what is behind it is not reached
  const auto most = static_cast<std::size_t>(limits_.head_rows);
  for (std::size_t first = 0; first < picks.size(); first += most) {
    const std::size_t count = std::min(most, picks.size() - first);
    const Arena::Scope scope(arena_);
    std::vector<std::uint32_t> faults(count, 0);
    Tensor picked;
    const Tensor logits = head_of(hidden, std::span(picks).subspan(first, count), picked, faults);
    const std::span<Choice> chosen = std::span(choices).subspan(first, count);
    const std::span<ChoosingRow> choosing = std::span(rows).subspan(first, count);
    mask_choices(choosing, std::span(whose).subspan(first, count), std::span(broken).first(first + count));
    parts_.chooser->choose(*parts_.device, logits, choosing, chosen);
    for (std::size_t i = 0; i < count; ++i)
      if (faults[i] != 0) chosen[i].failure = numeric_error();
  }
  for (std::size_t i = 0; i < picks.size(); ++i) {
    whose[i]->roll.roll_back();
    if (broken[i]) choices[i].failure = std::move(broken[i]);
  }
  for (const Share& share : shares)
    for (std::int64_t j = share.first_fault; share.decodes() && j >= 0 && j < share.choices(); ++j)
      choices[share.first_choice + static_cast<std::size_t>(j)].failure = numeric_error();
}

// Choices of a row come in the order of its window, and its rolled state walks along. What it throws ends its row
// alone, and only if the row gets there. The end of `broken` is what these rows come to.
void Core::mask_choices(std::span<ChoosingRow> rows, std::span<EngineRow* const> whose,
                        std::span<std::optional<Refusal>> broken) {
  const std::int64_t words = mask_words(bounds_.vocab);
  const std::size_t before = broken.size() - rows.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EngineRow& row = *whose[i];
    const bool first = rows[i].t == row.generated();
    if (!row.roll) continue;
    if (!first) {
      broken[before + i] = broken[before + i - 1];
      if (!broken[before + i]) broken[before + i] = row.roll.enter(rows[i].history.back());
      if (broken[before + i]) continue;
    }
    const std::span<std::uint32_t> room{arena_.take_of<std::uint32_t>(words), static_cast<std::size_t>(words)};
    broken[before + i] = row.roll.mask(room, rows[i].allowed);
  }
}

// A draft stands where the choice is its token: under greedy and coupled the target chose it with the same noise, under
// ratio the verdict is another token where it does not stand (serving.md section 3).
void Core::accept(Share& share, std::span<const Choice> choices) const {
  share.accepted = 0;
  if (share.failed || share.choices() == 0) return;
  const EngineRow& row = *share.row;
  const auto drafted = static_cast<std::size_t>(row.drafted);
  const std::span<const Choice> own = choices.subspan(share.first_choice, drafted + 1);
  std::array<std::int32_t, kMaxDraftDepth + 1> ids;  // a choice that failed is no draft's token
  std::transform(own.begin(), own.end(), ids.begin(), [](const Choice& c) { return c.failure ? -1 : c.id; });
  share.accepted = accept_exact(std::span(row.tokens).last(drafted), std::span(ids).first(drafted + 1));
  share.fails = own[static_cast<std::size_t>(share.accepted)].failure.has_value();
}

// The hiddens as the draft head reads them, or as they are.
Tensor Core::context_of(Tensor hidden) {
  const Step step{*parts_.device, arena_};
  const bool has_head = speculation_ && speculation_->has_head();
  return has_head ? tapped(step, *parts_.model->native_draft(), hidden) : hidden;
}

// The draft head follows what stays of each row. The drafted tokens of a row that ends inside its window do not matter:
// it leaves.
std::vector<PreparedStateChange> Core::prepare_follow(std::span<Share> shares, Tensor context) {
  if (!speculation_) return {};
  const Step step{*parts_.device, arena_};
  std::vector<Speculation::Followed> rows;
  std::vector<Share*> whose;
  for (Share& share : shares) {
    if (share.failed || share.fails || !share.row->keeps_drafts()) continue;
    const std::int64_t kept = share.decodes() ? share.accepted + 1 : share.tokens;
    const auto tokens =
        std::span(share.row->tokens)
            .subspan(static_cast<std::size_t>(share.row->state->length()), static_cast<std::size_t>(kept));
    rows.push_back({share.row, tokens, context.slice(share.begin, kept)});
    whose.push_back(&share);
  }
  std::vector<PreparedStateChange> changes = speculation_->prepare_follow(step, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) whose[i]->postponed = rows[i].failed;
  return changes;
}

void Core::observe(std::span<const Share> shares) {
  if (!speculation_) return;
  std::vector<Speculation::Outcome> outcomes;
  auto prompts = DepthController::Prompts::none;
  for (const Share& share : shares) {
    if (!share.decodes())
      prompts = DepthController::Prompts::some;
    else if (!share.fails && !share.postponed)
      outcomes.push_back({share.row, share.row->drafted, share.accepted});
  }
  if (!outcomes.empty()) speculation_->observe(outcomes, times_, prompts);
}

// What the chosen tokens mean for the row: its text, its end. Throws only on this row's own account.
Core::Outcome Core::outcome_of(const Share& share, std::span<Choice> choices) {
  EngineRow& row = *share.row;
  Outcome out;
  if (share.failed) {
    out.finish = FinishReason::failed;
    out.error = numeric_error();
    out.event.text = row.text->finish(row.look(0)).text;
    return out;
  }
  if (!share.samples()) {
    const bool prompt_done = row.state->length() + share.tokens == row.prompt_tokens;
    if (row.request.want == Want::generate && prompt_done) out.finish = FinishReason::length;  // max_tokens 0
    return out;
  }
  for (std::int64_t j = 0; j <= share.accepted && !out.finish; ++j)
    emit(row, choices[share.first_choice + static_cast<std::size_t>(j)], out);
  return out;
}

// One token more of a row, or its end.
void Core::emit(EngineRow& row, Choice& choice, Outcome& out) {
  const std::int64_t emitted = std::ssize(out.event.ids);
  if (!choice.failure) choice.failure = choice.id < 0 ? numeric_error() : row.roll.enter(choice.id);
  if (choice.failure) {
    out.finish = FinishReason::failed;
    out.error = std::move(choice.failure);
    out.event.text += row.text->finish(row.look(emitted)).text;
    return;
  }
  out.event.ids.push_back(choice.id);
  if (choice.logprob) out.event.logprobs.push_back(std::move(*choice.logprob));
  const bool is_end = row.ends_with(choice.id);
  AnswerPiece piece;
  if (!is_end) piece = row.text->push(choice.id, row.look(emitted));
  if (is_end || row.roll.complete())
    out.finish = FinishReason::stop;
  else if (row.generated() + emitted + 1 >= row.request.max_tokens)
    out.finish = FinishReason::length;
  if (out.finish && !piece.stop) {  // nothing more comes: held text is released, unless it ends in a stop after all
    AnswerPiece rest = row.text->finish(row.look(emitted));
    piece.text += rest.text;
    piece.stop = rest.stop;
  }
  out.event.text += piece.text;
  if (piece.stop) {
    out.finish = FinishReason::stop;
    out.stop_match = row.request.stop[*piece.stop];
  }
}

// Commits the step row by row. All that can fail for a row happens in its outcome; its commit moves.
void Core::settle(std::span<Share> shares, std::span<Choice> choices) {
  const Clock::time_point now = Clock::now();
  for (const Share& share : shares) {
    if (share.postponed) continue;
    Outcome out;
    try {
      out = outcome_of(share, choices);
    } catch (const std::exception& error) {
      out = {};
      out.finish = FinishReason::failed;
      out.error = Refusal{fmt::format("generation failed: {}", error.what()), "", "generation_failed", 500};
    }
    commit(share, std::move(out), now);
  }
}

void Core::commit(const Share& share, Outcome out, Clock::time_point now) noexcept {
  EngineRow& row = *share.row;
  const std::int64_t emitted = std::ssize(out.event.ids);
  if (share.decodes() && emitted > 0) row.drafts_seen.note(row.drafted, emitted - 1, times_);
  if (!out.error) row.roll.keep();
  row.drop_drafts();
  // A window keeps as many tokens as it emitted: the pending one and the drafts that stand.
  if (!out.error) {
    const std::int64_t kept = share.decodes() ? emitted : share.tokens;
    row.state->advance(kept);
    const auto clamps =
        std::span(clamps_).subspan(static_cast<std::size_t>(share.begin), static_cast<std::size_t>(kept));
    kv_clamps_.fetch_add(std::accumulate(clamps.begin(), clamps.end(), std::int64_t{0}), std::memory_order_relaxed);
  }
  if (emitted > 0) {
    if (row.generated() == 0) row.first_token = now;
    row.last_token = now;
    for (const std::int32_t id : out.event.ids) row.tokens.push_back(id);  // within the capacity reserved at admission
    out.event.request = row.id;
    outbox_.push_back(std::move(out.event));
    out.event.text.clear();
  }
  if (out.finish)
    post_end(row, *out.finish, std::move(out.error), std::move(out.event.text), std::move(out.stop_match));
}

}  // namespace outrider
