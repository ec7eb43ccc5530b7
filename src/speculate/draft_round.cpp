#include "speculate/draft_round.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"

namespace outrider {

class DraftRound::BothChanges : public StateChange {
 public:
  BothChanges(std::optional<PreparedStateChange> head, std::optional<PreparedStateChange> text)
      : head_(std::move(head)), text_(std::move(text)) {}
  void commit() noexcept override {
    if (head_) head_->commit();
    if (text_) text_->commit();
  }
  void dispose() noexcept override {
    head_.reset();
    text_.reset();
  }

 private:
  std::optional<PreparedStateChange> head_, text_;
};

void DraftRound::draft(const Step& step, std::span<const Ask> asks, DraftPort* port, std::span<RowResult> results) {
  OUTRIDER_CHECK(asks.size() == results.size(), "{} results for {} rows", results.size(), asks.size());
  places_.clear();
  places_.resize(asks.size());
  asks_.clear();
  of_head_.clear();
  for (std::size_t i = 0; i < asks.size(); ++i) {
    const Ask& ask = asks[i];
    Place& place = places_[i];
    place.row = ask.row;
    results[i] = RowResult::done;
    if (!ask.forced.empty()) {
      const auto count = std::min(ask.forced.size(), static_cast<std::size_t>(ask.depth));
      place.proposals.assign(ask.forced.begin(), ask.forced.begin() + static_cast<std::ptrdiff_t>(count));
      place.source = DraftSource::text;
    } else if (ask.depth > 0 && ask.text != nullptr && ask.text->match_length() > 0) {
      place.proposals.resize(static_cast<std::size_t>(ask.depth));
      ask.text->propose(place.proposals);
      place.source = DraftSource::text;
    } else if (rows_ != nullptr) {
      asks_.push_back({ask.row, ask.pending, ask.depth, ask.t});
      of_head_.push_back(i);
    }
    place.window = {ask.pending};
    place.window.insert(place.window.end(), place.proposals.begin(), place.proposals.end());
  }
  // Room for what the head will propose, so that nothing fails behind its draft.
  for (const std::size_t i : of_head_) places_[i].proposals.reserve(static_cast<std::size_t>(asks[i].depth));
  if (asks_.empty()) return;
  results_.resize(asks_.size());
  rows_->draft(step, asks_, port, results_);
  for (std::size_t j = 0; j < asks_.size(); ++j) {
    const auto proposed = rows_->proposals(asks_[j].row);
    Place& place = places_[of_head_[j]];
    place.proposals.assign(proposed.begin(), proposed.end());
    results[of_head_[j]] = results_[j];
    if (results_[j] == RowResult::failed) place.source = DraftSource::text;  // goes on with its pending token alone
  }
}

PreparedStateChange DraftRound::prepare_commit(const Step& step, std::span<const Verdict> verdicts,
                                               std::span<RowResult> results) {
  OUTRIDER_CHECK(verdicts.size() == results.size(), "{} results for {} rows", results.size(), verdicts.size());
  verdicts_.clear();
  feeds_.clear();
  of_head_.clear();
  of_text_.clear();
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    const Verdict& verdict = verdicts[i];
    OUTRIDER_CHECK(verdict.ask < places_.size(), "ask {} of {}", verdict.ask, places_.size());
    const Place& place = places_[verdict.ask];
    OUTRIDER_CHECK(verdict.accepted >= 0 && verdict.accepted <= std::ssize(place.proposals),
                   "{} accepted of {} proposals", verdict.accepted, place.proposals.size());
    results[i] = RowResult::done;
    if (rows_ == nullptr) continue;
    if (place.source == DraftSource::text) {
      feeds_.push_back(
          {place.row, std::span(place.window).first(static_cast<std::size_t>(verdict.accepted) + 1), verdict.context});
      of_text_.push_back(i);
    } else {
      verdicts_.push_back({place.row, verdict.accepted, verdict.context});
      of_head_.push_back(i);
    }
  }
  std::optional<PreparedStateChange> head, text;
  const auto take = [&](const std::vector<std::size_t>& whose) {
    for (std::size_t j = 0; j < whose.size(); ++j) results[whose[j]] = results_[j];
  };
  if (!verdicts_.empty()) {
    results_.resize(verdicts_.size());
    head = rows_->prepare_commit(step, verdicts_, results_);
    take(of_head_);
  }
  if (!feeds_.empty()) {
    results_.resize(feeds_.size());
    text = rows_->prepare_prefill(step, feeds_, results_);
    take(of_text_);
  }
  return PreparedStateChange(std::make_unique<BothChanges>(std::move(head), std::move(text)));
}

void DraftRound::abort() noexcept {
  if (rows_ != nullptr)
    for (const Place& place : places_) {
      const std::int64_t row[] = {place.row};
      if (place.source == DraftSource::head) rows_->abort(row);
    }
  places_.clear();  // their rows may retire before the next round
}

}  // namespace outrider
