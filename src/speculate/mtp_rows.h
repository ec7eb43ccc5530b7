// The draft side of a group of requests (runtime.md section 4): draft KV, true hiddens, carried pairs, rounds.
//
// A row is cold, or it has processed n >= 1 target tokens; then it keeps the target's hidden of the last one and
// n - 1 - carried draft rows. Row p is at KV position p+1 (speculate/draft_module.h), so the KV has the target's
// length. All of an operation is written behind the row's length and published by advancing it: a row that is abandoned
// at any instant is the committed one. Index r is the same request in every call; each call names its rows, once each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/state_change.h"
#include "speculate/draft_module.h"
#include "speculate/draft_port.h"
#include "speculate/mtp_state.h"

namespace outrider {

class MtpRows {
 public:
  static constexpr int kMaxFailures = 3;

  // Borrows the module and a pool of its layout, which outlive it.
  MtpRows(DraftModule& module, KvPool& pool, const DraftLimits& limits, Refresh refresh);
  ~MtpRows();
  MtpRows(const MtpRows&) = delete;
  MtpRows& operator=(const MtpRows&) = delete;

  std::int64_t row_count() const;
  std::int64_t processed(std::int64_t r) const;     // n; 0: cold
  std::int64_t draft_length(std::int64_t r) const;  // draft rows, without carried pairs and the open round
  std::int64_t carried(std::int64_t r) const;
  std::span<const float> hidden(std::int64_t r) const;  // [E] of a committed row, zeros of a cold one
  const KvRow& kv(std::int64_t r) const;
  // Draft rows from the first on that have the bytes of a prefill of the same tokens.
  std::int64_t exact_length(std::int64_t r) const;
  bool without_head(std::int64_t r) const;
  std::int64_t rows_without_head() const;  // how many lost theirs so far, retired ones included

  // Rows join at the end. On failure the group is unchanged.
  void append(std::span<const MtpJoin> joins) { prepare_append(joins).commit(); }
  PreparedStateChange prepare_append(std::span<const MtpJoin> joins);
  // Row i becomes the former row keep[i]; rows not named retire. An index twice or out of range: CHECK.
  void filter_rows(std::span<const std::int64_t> keep) { prepare_filter(keep).commit(); }
  PreparedStateChange prepare_filter(std::span<const std::int64_t> keep);

  // The three below write carried pairs first; a row inside a round: CHECK. Error when that fails, the row unchanged.
  std::optional<MtpState> extract_row(const Step& step, std::int64_t r);
  MtpCheckpoint checkpoint(const Step& step, std::int64_t r);
  // The KV of the first n >= 1 processed tokens, shared with the row; n - 1 <= exact_length() + carried(): CHECK.
  KvRow share_prefix(const Step& step, std::int64_t r, std::int64_t n);
  // A state from a checkpoint taken at n = `tokens`. Error (data) "invalid paired MTP checkpoint alignment".
  MtpState restore(const MtpCheckpoint& checkpoint, std::int64_t tokens) const;

  // Follows the target over a prompt chunk, or (runtime.md: consume) over a continuation that was verified without this
  // group's draft. Never calls the head. Throws: all named rows are as before.
  void prefill(const Step& step, std::span<const MtpFeed> feeds, std::span<RowResult> results) {
    prepare_prefill(step, feeds, results).commit();
  }
  PreparedStateChange prepare_prefill(const Step& step, std::span<const MtpFeed> feeds, std::span<RowResult> results);

  // Opens a round of committed rows. `port` may be null when all depths are 0. Throws: all named rows are as before.
  void draft(const Step& step, std::span<const MtpAsk> asks, DraftPort* port, std::span<RowResult> results);
  bool in_round(std::int64_t r) const;
  // Of the open round, at most the depth asked for. Valid until the round ends.
  std::span<const std::int32_t> proposals(std::int64_t r) const;
  // Ends the round of drafted rows. Throws: the rows are still in it, to be ended again or aborted.
  void commit(const Step& step, std::span<const MtpVerdict> verdicts, std::span<RowResult> results) {
    prepare_commit(step, verdicts, results).commit();
  }
  PreparedStateChange prepare_commit(const Step& step, std::span<const MtpVerdict> verdicts,
                                     std::span<RowResult> results);
  // Each row is as its last committed round left it. Nothing happens to rows outside a round.
  void abort(std::span<const std::int64_t> rows) noexcept;

  // Bytes of one row beside its KV, and arena bytes of the largest call.
  static std::size_t row_bytes(std::int64_t width, const DraftLimits& limits);
  static std::size_t scratch_bytes(const DraftModule& module, const Device& device, const DraftLimits& limits);

 private:
  struct Row;
  struct Work;
  class Pass;
  class KnownPairs;
  class AppendChange;
  class FilterChange;
  class PublishChange;

  Row& at(std::int64_t r);
  const Row& at(std::int64_t r) const;
  template <class Item>
  void begin_call(std::span<const Item> items, std::span<RowResult> results);
  template <class Item, class Operation>
  void guarded(std::span<const Item> items, Operation&& operation);
  template <class Item>
  PreparedStateChange publish(std::span<const Item> items, std::span<RowResult> results);
  void fail(Row& row) noexcept;

  PreparedStateChange feed(const Step& step, std::span<const MtpFeed> feeds, std::span<RowResult> results);
  void reserve_feed(const MtpFeed& item);
  void append_pairs(const Step& step, std::span<const MtpFeed> feeds);
  void flush(const Step& step, std::int64_t r);
  void append_pending(const Step& step, std::span<const MtpAsk> asks);
  void draft_chains(const Step& step, std::span<const MtpAsk> asks, DraftPort* port);
  void first_outputs(const Step& step, Tensor chain);
  void next_outputs(const Step& step, std::int64_t place, Tensor chain);
  void pick(const Step& step, std::int64_t place, Tensor chain, DraftPort& port);
  void judge(Row& row, const MtpVerdict& verdict) const;
  void append_last(const Step& step, std::span<const MtpVerdict> verdicts);

  DraftModule& module_;
  KvPool& pool_;
  DraftLimits limits_;
  Refresh refresh_;
  std::vector<Row> rows_;
  std::unique_ptr<Work> work_;  // buffers of a call
  std::uint64_t order_ = 0;     // grows when indices change, so that a stale commit is caught
  std::uint64_t call_ = 0;      // of begin_call: a row named twice is caught
  Row* culprit_ = nullptr;      // the row that a call is busy with alone
  std::int64_t rows_without_head_ = 0;
};

}  // namespace outrider
