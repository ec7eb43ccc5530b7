// The rounds of draft rows: prefill, draft, commit, abort (runtime.md section 4).
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/failure_injection.h"
#include "speculate/mtp_row.h"

namespace outrider {

// Names the rows of a call. All are in `stage`, each is named once.
template <class Item>
void MtpRows::begin_call(std::span<const Item> items, std::span<RowResult> results) {
  constexpr auto stage = std::is_same_v<Item, MtpVerdict> ? Row::Stage::drafted : Row::Stage::idle;
  OUTRIDER_CHECK(items.size() == results.size(), "{} results for {} rows", results.size(), items.size());
  ++call_;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Row& row = at(items[i].row);
    OUTRIDER_CHECK(row.call != call_, "draft row {} is named twice", items[i].row);
    OUTRIDER_CHECK(row.headless || row.stage == stage, "draft row {}: {}", items[i].row,
                   row.stage == Row::Stage::idle ? "commit without draft" : "already inside a round");
    row.call = call_;
    results[i] = row.headless ? RowResult::without_head : RowResult::done;
  }
}

// Runs what may throw. Then every named row goes back to its last committed round, and the failure counts against the
// row the call was busy with, or the only one it names.
template <class Item, class Operation>
void MtpRows::guarded(std::span<const Item> items, Operation&& operation) {
  culprit_ = nullptr;
  try {
    std::forward<Operation>(operation)();
  } catch (...) {
    for (const Item& item : items) {
      Row& row = at(item.row);
      if (row.headless) continue;
      if (culprit_ == &row || (culprit_ == nullptr && items.size() == 1)) {
        fail(row);
      } else {
        row.settle();
      }
    }
    throw;
  }
}

void MtpRows::fail(Row& row) noexcept {
  row.settle();
  if (++row.failures < kMaxFailures) return;
  row.kv.truncate(0);
  row.carried.clear();
  std::memset(row.now.data(), 0, row.now.size());
  row.exact = 0;
  row.committed = false;
  row.headless = true;
  ++rows_without_head_;
}

void MtpRows::abort(std::span<const std::int64_t> rows) noexcept {
  for (const std::int64_t r : rows) {
    Row& row = at(r);
    OUTRIDER_CHECK(row.stage != Row::Stage::prepared, "abort of draft row {} while a change of it is prepared", r);
    row.settle();
  }
}

// What the rows have written, to be published together.
class MtpRows::PublishChange : public StateChange {
 public:
  PublishChange(MtpRows& group, std::vector<std::int64_t> rows)
      : group_(group), order_(group.order_), rows_(std::move(rows)) {
    for (const std::int64_t r : rows_) {
      Row& row = group_.at(r);
      row.stage_before = std::exchange(row.stage, Row::Stage::prepared);
    }
  }
  void commit() noexcept override {
    for (const std::int64_t r : std::exchange(rows_, {})) {
      Row& row = own(r);
      row.kv.advance(row.publish);
      row.exact = row.publish_exact;
      std::swap(row.now, row.next);
      row.carried.swap(row.next_carried);
      row.committed = true;
      row.settle();
    }
  }
  // Before commit: the rows are where they were, what they wrote stays unpublished.
  void dispose() noexcept override {
    for (const std::int64_t r : std::exchange(rows_, {})) {
      Row& row = own(r);
      row.stage = row.stage_before;
      if (row.stage == Row::Stage::idle) row.settle();
    }
  }

 private:
  Row& own(std::int64_t r) {
    OUTRIDER_CHECK(group_.order_ == order_, "the draft group changed while a change of its rows was prepared");
    return group_.at(r);
  }
  MtpRows& group_;
  std::uint64_t order_;
  std::vector<std::int64_t> rows_;
};

// Rows whose values failed drop out here.
template <class Item>
PreparedStateChange MtpRows::publish(std::span<const Item> items, std::span<RowResult> results) {
  std::vector<std::int64_t> sound;
  sound.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i)
    if (const Row& row = at(items[i].row); !row.headless && !row.faulty) sound.push_back(items[i].row);
  PreparedStateChange change(std::make_unique<PublishChange>(*this, std::move(sound)));
  for (std::size_t i = 0; i < items.size(); ++i) {
    Row& row = at(items[i].row);
    if (!row.faulty) continue;
    fail(row);
    results[i] = RowResult::failed;
  }
  return change;
}

// --- Following the target ---

PreparedStateChange MtpRows::prepare_prefill(const Step& step, std::span<const MtpFeed> feeds,
                                             std::span<RowResult> results) {
  for (const MtpFeed& item : feeds) OUTRIDER_CHECK(!item.tokens.empty(), "no tokens for draft row {}", item.row);
  return feed(step, feeds, results);
}

PreparedStateChange MtpRows::feed(const Step& step, std::span<const MtpFeed> feeds, std::span<RowResult> results) {
  begin_call(feeds, results);
  std::optional<PreparedStateChange> change;
  guarded(feeds, [&] {
    fallible_point("MtpRows::feed");
    for (const MtpFeed& item : feeds) reserve_feed(item);
    append_pairs(step, feeds);
    change = publish(feeds, results);
  });
  return std::move(*change);
}

// Room for a row's pairs, and what it will be after them.
void MtpRows::reserve_feed(const MtpFeed& item) {
  Row& row = at(item.row);
  if (row.headless) return;
  const std::int64_t width = module_.width(), tokens = std::ssize(item.tokens);
  OUTRIDER_CHECK(tokens == 0 || (item.context.rows >= tokens && item.context.width == width),
                 "a context of [{}, {}] for {} tokens", item.context.rows, item.context.width, tokens);
  const bool bridges = row.committed || tokens == 0;
  const std::int64_t pairs = std::ssize(row.carried) + tokens - (bridges ? 0 : 1);
  culprit_ = &row;
  row.kv.reserve(row.positions_for(pairs));
  culprit_ = nullptr;
  row.publish = row.positions_for(pairs);
  row.publish_exact = row.exact == row.draft_length() ? row.exact + pairs : row.exact;
  row.next_carried.clear();
  const float* last = tokens > 0 ? item.context.row(tokens - 1) : row.hidden(row.now, width, 0);
  std::memcpy(row.hidden(row.next, width, 0), last, static_cast<std::size_t>(width) * sizeof(float));
}

void MtpRows::append_pairs(const Step& step, std::span<const MtpFeed> feeds) {
  KnownPairs pairs(*this, step);
  for (const MtpFeed& item : feeds) {
    Row& row = at(item.row);
    if (row.headless) continue;
    std::int64_t p = pairs.add_carried(row);
    // The bridge from what the row had processed before; a cold row has none.
    if (row.committed && !item.tokens.empty())
      pairs.add(row, p++, item.tokens[0], row.hidden(row.now, module_.width(), 0));
    for (std::size_t t = 1; t < item.tokens.size(); ++t)
      pairs.add(row, p++, item.tokens[t], item.context.row(static_cast<std::int64_t>(t) - 1));
  }
  pairs.run();
}

void MtpRows::flush(const Step& step, std::int64_t r) {
  OUTRIDER_CHECK(at(r).stage == Row::Stage::idle, "copy of draft row {} inside a round", r);
  if (at(r).carried.empty()) return;
  const MtpFeed nothing{r, {}, {}};
  RowResult result;
  feed(step, {&nothing, 1}, {&result, 1}).commit();
  if (result == RowResult::failed)
    throw Error(ErrorKind::runtime, fmt::format("the values of draft row {} are not finite", r));
}

// --- Rounds ---

void MtpRows::draft(const Step& step, std::span<const MtpAsk> asks, DraftPort* port, std::span<RowResult> results) {
  begin_call(asks, results);
  guarded(asks, [&] {
    fallible_point("MtpRows::draft");
    for (const MtpAsk& ask : asks) {
      Row& row = at(ask.row);
      if (row.headless) continue;
      OUTRIDER_CHECK(row.committed, "draft of cold row {}", ask.row);
      OUTRIDER_CHECK(ask.depth >= 0 && ask.depth <= limits_.depth && (ask.depth == 0 || port != nullptr),
                     "depth {} of at most {}", ask.depth, limits_.depth);
      const std::int64_t last = refresh_ == Refresh::as_drafted ? 1 : 0;  // the row that a full acceptance adds
      culprit_ = &row;
      row.kv.reserve(row.positions_for(std::ssize(row.carried) + std::max<std::int64_t>(ask.depth, 1) + last));
      culprit_ = nullptr;
    }
    append_pending(step, asks);
    draft_chains(step, asks, port);
  });
  for (std::size_t i = 0; i < asks.size(); ++i) {
    Row& row = at(asks[i].row);
    if (row.faulty) {
      fail(row);
      results[i] = RowResult::failed;
    } else if (!row.headless) {
      row.stage = Row::Stage::drafted;
    }
  }
}

// Rows of depth 0: their carried pairs and the pending one.
void MtpRows::append_pending(const Step& step, std::span<const MtpAsk> asks) {
  KnownPairs pairs(*this, step);
  for (const MtpAsk& ask : asks) {
    Row& row = at(ask.row);
    if (row.headless || ask.depth > 0) continue;
    const std::int64_t p = pairs.add_carried(row);
    pairs.add(row, p, ask.pending, row.hidden(row.now, module_.width(), 0));
  }
  pairs.run();
}

// Rows of depth > 0, as many at a time as one pass and one set of logits hold.
void MtpRows::draft_chains(const Step& step, std::span<const MtpAsk> asks, DraftPort* port) {
  std::vector<const MtpAsk*>& active = work_->active;
  for (std::size_t i = 0; i < asks.size();) {
    active.clear();
    std::int64_t tokens = 0;
    for (; i < asks.size() && std::ssize(active) < limits_.rows; ++i) {
      const Row& row = at(asks[i].row);
      if (row.headless || asks[i].depth == 0) continue;
      if (tokens + std::ssize(row.carried) + 1 > limits_.chunk_tokens) break;
      tokens += std::ssize(row.carried) + 1;
      active.push_back(&asks[i]);
    }
    if (active.empty()) continue;
    const Arena::Scope scope(step.arena);
    const Tensor chain = step.arena.tensor(std::ssize(active), module_.width());
    first_outputs(step, chain);
    for (std::int64_t place = 0; !active.empty(); ++place) {
      if (place > 0) next_outputs(step, place, chain);
      pick(step, place, chain, *port);
    }
  }
}

// One window per row: carried pairs, then (pending, true hidden). chain row i = output of the pending pair of active i.
void MtpRows::first_outputs(const Step& step, Tensor chain) {
  const std::int64_t width = module_.width();
  Pass pass(*this, step);
  for (const MtpAsk* ask : work_->active) {
    Row& row = at(ask->row);
    std::int64_t p = row.draft_length(), i = 0;
    for (const std::int32_t token : row.carried) pass.add(row, p++, token, row.hidden(row.now, width, ++i));
    pass.add(row, p, ask->pending, row.hidden(row.now, width, 0));
  }
  const Tensor outputs = pass.forward();
  for (std::size_t r = 0; r < pass.rows(); ++r)
    std::memcpy(chain.row(static_cast<std::int64_t>(r)), outputs.row(pass.last_token(r)),
                static_cast<std::size_t>(width) * sizeof(float));
}

// (previous proposal, previous output) of every active row.
void MtpRows::next_outputs(const Step& step, std::int64_t place, Tensor chain) {
  Pass pass(*this, step);
  for (std::size_t i = 0; i < work_->active.size(); ++i) {
    Row& row = at(work_->active[i]->row);
    pass.add(row, row.draft_length() + std::ssize(row.carried) + place, row.proposals.back(),
             chain.row(static_cast<std::int64_t>(i)));
  }
  const Tensor outputs = pass.forward();
  for (std::int64_t i = 0; i < outputs.rows; ++i)
    std::memcpy(chain.row(i), outputs.row(i), static_cast<std::size_t>(chain.width) * sizeof(float));
}

// Proposal `place` of every active row. Rows that failed, ended or reached their depth leave; the others move up.
void MtpRows::pick(const Step& step, std::int64_t place, Tensor chain, DraftPort& port) {
  auto& [tokens, batch_rows, owners, faults, active, picks, choices] = *work_;
  const std::int64_t rows = std::ssize(active);
  {
    const Arena::Scope scope(step.arena);
    const Tensor logits = step.arena.tensor(rows, module_.head_columns());
    std::fill_n(faults.begin(), rows, 0U);
    const Step own{step.device, step.arena, faults.data()};
    module_.head(own, chain.slice(0, rows), logits);
    picks.clear();
    for (const MtpAsk* ask : active) picks.push_back({ask->row, ask->t + place});
    choices.assign(active.size(), {});
    port.choose(own, logits, module_.head_ids(), picks, choices);
  }
  std::size_t left = 0;
  for (std::size_t i = 0; i < active.size(); ++i) {
    Row& row = at(active[i]->row);
    row.faulty = row.faulty || faults[i] != 0 || choices[i].picked == Picked::failed;
    if (row.faulty || choices[i].picked == Picked::nothing) continue;
    row.proposals.push_back(choices[i].id);
    if (place + 1 == active[i]->depth) continue;
    std::memmove(chain.row(static_cast<std::int64_t>(left)), chain.row(static_cast<std::int64_t>(i)),
                 static_cast<std::size_t>(chain.width) * sizeof(float));
    active[left++] = active[i];
  }
  active.resize(left);
}

PreparedStateChange MtpRows::prepare_commit(const Step& step, std::span<const MtpVerdict> verdicts,
                                            std::span<RowResult> results) {
  begin_call(verdicts, results);
  std::optional<PreparedStateChange> change;
  guarded(verdicts, [&] {
    fallible_point("MtpRows::prepare_commit");
    for (const MtpVerdict& verdict : verdicts)
      if (Row& row = at(verdict.row); !row.headless) judge(row, verdict);
    if (refresh_ == Refresh::as_drafted) append_last(step, verdicts);
    change = publish(verdicts, results);
  });
  return std::move(*change);
}

// What the row will be after its round.
void MtpRows::judge(Row& row, const MtpVerdict& verdict) const {
  const std::int64_t width = module_.width(), depth = std::ssize(row.proposals), accepted = verdict.accepted;
  const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
  OUTRIDER_CHECK(verdict.context.width == width && verdict.context.rows >= 1 && verdict.context.rows <= depth + 1 &&
                     accepted >= 0 && accepted < verdict.context.rows,
                 "{} accepted, a context of {} rows, {} proposals", accepted, verdict.context.rows, depth);
  row.next_carried.clear();
  std::memcpy(row.hidden(row.next, width, 0), verdict.context.row(accepted), bytes);
  std::int64_t pairs = 0, exact_pairs = 0;
  if (refresh_ == Refresh::from_target) {
    exact_pairs = pairs = std::ssize(row.carried) + 1;
    for (std::int64_t i = 0; i < accepted; ++i) {
      row.next_carried.push_back(row.proposals[static_cast<std::size_t>(i)]);
      std::memcpy(row.hidden(row.next, width, 1 + i), verdict.context.row(i), bytes);
    }
  } else {
    const std::int64_t kept = std::min(accepted + 1, std::max<std::int64_t>(depth, 1));
    pairs = kept + (depth > 0 && accepted == depth ? 1 : 0);
    // The pending pair is exact, chained ones are not; an exact one behind them is no part of an exact prefix.
    exact_pairs = kept == 1 ? pairs : 1;
  }
  row.publish_exact = row.exact == row.draft_length() ? row.exact + exact_pairs : row.exact;
  row.publish = row.positions_for(pairs);
}

// as_drafted: rows whose every proposal was accepted get the pair of the last one, with its true hidden.
void MtpRows::append_last(const Step& step, std::span<const MtpVerdict> verdicts) {
  KnownPairs pairs(*this, step);
  for (const MtpVerdict& verdict : verdicts) {
    Row& row = at(verdict.row);
    const std::int64_t depth = std::ssize(row.proposals);
    if (row.headless || depth == 0 || verdict.accepted < depth) continue;
    pairs.add(row, row.draft_length() + depth, row.proposals.back(), verdict.context.row(depth - 1));
  }
  pairs.run();
}

}  // namespace outrider
