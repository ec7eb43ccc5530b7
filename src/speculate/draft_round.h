// One round of drafts over a group of rows, wherever their proposals come from: the draft head, the text itself, or
// the caller (tokens that a grammar forces). The target verifies all alike. Rows that did not draft with the head
// follow the target by a prefill, so that every row may draft from anywhere in its next round.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speculate/depth_controller.h"
#include "speculate/mtp_rows.h"
#include "speculate/ngram_drafter.h"

namespace outrider {

// One engine thread; a round is draft(), the target's step, prepare_commit() of the rows that passed it, abort().
class DraftRound {
 public:
  // Borrowed; null: the model has no head, and rows draft from their text or not at all.
  explicit DraftRound(MtpRows* rows) : rows_(rows) {}

  struct Ask {
    std::int64_t row = 0;
    std::int32_t pending = 0;
    std::int64_t depth = 0;
    std::int64_t t = 0;
    std::span<const std::int32_t> forced = {};  // the proposals themselves, up to `depth` of them
    const NgramDrafter* text = nullptr;         // else drafts from it if it has a match; pending is its last token
  };
  // Opens a round of these rows. results[i] as MtpRows::draft says of the head's rows; others are done. A failed row
  // goes on without proposals. Throws: no row is in a round.
  void draft(const Step& step, std::span<const Ask> asks, DraftPort* port, std::span<RowResult> results);
  // Of ask i, until the next draft().
  std::span<const std::int32_t> proposals(std::size_t i) const { return places_[i].proposals; }
  DraftSource source(std::size_t i) const { return places_[i].source; }

  // As MtpVerdict, of ask `ask`.
  struct Verdict {
    std::size_t ask = 0;
    std::int64_t accepted = 0;
    Tensor context;
  };
  // Ends the round of these asks when it is committed, with the target's change. Throws: they are still in it, or have
  // been aborted.
  PreparedStateChange prepare_commit(const Step& step, std::span<const Verdict> verdicts, std::span<RowResult> results);
  // What is still in the round is as the round before left it.
  void abort() noexcept;

 private:
  struct Place {
    std::int64_t row = 0;
    DraftSource source = DraftSource::head;
    std::vector<std::int32_t> proposals;
    std::vector<std::int32_t> window;  // pending, then proposals that are not the head's
  };
  class BothChanges;

  MtpRows* rows_;
  std::vector<Place> places_;  // of the asks
  // Of one call: the head's rows and the others, and whose results are where.
  std::vector<MtpAsk> asks_;
  std::vector<MtpVerdict> verdicts_;
  std::vector<MtpFeed> feeds_;
  std::vector<std::size_t> of_head_, of_text_;
  std::vector<RowResult> results_;
};

}  // namespace outrider
