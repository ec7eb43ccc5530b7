// Inside of MtpRows: a row, the buffers of a call, and a pass of the module while it is put together.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "speculate/mtp_rows.h"

namespace outrider {

struct MtpRows::Row {
  enum class Stage : std::uint8_t {
    idle,
    drafted,   // between draft and commit
    prepared,  // a change of it waits to be committed
  };

  KvRow kv;
  // f32 [1 + K][E] each: the true hidden of the last processed position, then those of the carried tokens. A change is
  // written into `next`; publishing it swaps the two.
  AlignedBuffer now, next;
  std::vector<std::int32_t> carried, next_carried;  // room for K
  std::vector<std::int32_t> proposals;              // of the open round; room for K
  std::int64_t planned_tokens = 0;
  std::int64_t exact = 0;
  std::int64_t publish = 0;        // prepared: KV positions to publish
  std::int64_t publish_exact = 0;  // and what `exact` becomes
  std::uint64_t call = 0;
  Stage stage = Stage::idle;
  Stage stage_before = Stage::idle;  // prepared: the stage to return to
  int failures = 0;
  bool committed = false;  // has processed a token
  bool headless = false;
  bool faulty = false;  // within a call: its values or its port failed

  explicit Row(KvPool& pool) : kv(pool) {}

  std::int64_t draft_length() const { return std::max<std::int64_t>(kv.length() - 1, 0); }
  // KV positions that `pairs` more draft rows take: position 0 stays empty before the first.
  std::int64_t positions_for(std::int64_t pairs) const { return pairs > 0 && kv.length() == 0 ? pairs + 1 : pairs; }
  float* hidden(AlignedBuffer& of, std::int64_t width, std::int64_t i) const {
    return of.as<float>().data() + i * width;
  }
  // A row outside a round, with nothing written behind its length.
  void settle() noexcept {
    kv.release_reserved();
    proposals.clear();
    stage = Stage::idle;
    publish = 0;
    faulty = false;
  }
};

struct MtpRows::Work {
  std::vector<std::int32_t> tokens;
  std::vector<BatchRow> rows;
  std::vector<Row*> owners;  // of rows
  std::vector<std::uint32_t> faults;
  std::vector<const MtpAsk*> active;  // rows whose chain goes on; row i of the chain's hiddens is theirs
  std::vector<DraftPick> picks;
  std::vector<DraftChoice> choices;

  explicit Work(const DraftLimits& limits) {
    const auto chunk = static_cast<std::size_t>(limits.chunk_tokens), count = static_cast<std::size_t>(limits.rows);
    tokens.reserve(chunk);
    rows.reserve(chunk);
    owners.reserve(chunk);
    faults.resize(std::max(chunk, count));
    active.reserve(count);
    picks.reserve(count);
    choices.reserve(count);
  }
};

// Pairs of rows for one pass: consecutive positions of a row that are added one after the other are one row of the
// batch. Its scratch is given back when it ends.
class MtpRows::Pass {
 public:
  Pass(MtpRows& group, const Step& step)
      : group_(group),
        work_(*group.work_),
        step_(step),
        scope_(step.arena),
        hiddens_(step.arena.tensor(group.limits_.chunk_tokens, group.module_.width())) {
    work_.tokens.clear();
    work_.rows.clear();
    work_.owners.clear();
  }

  bool full() const { return size() == group_.limits_.chunk_tokens; }
  bool empty() const { return work_.tokens.empty(); }
  std::int64_t size() const { return static_cast<std::int64_t>(work_.tokens.size()); }

  // The pair (token, hidden [E]) as draft row p of `row`.
  void add(Row& row, std::int64_t p, std::int32_t token, const float* hidden) {
    OUTRIDER_CHECK(!full(), "a pass of {} tokens is full", size());
    const std::int64_t at = size();
    std::memcpy(hiddens_.row(at), hidden, static_cast<std::size_t>(hiddens_.width) * sizeof(float));
    work_.tokens.push_back(token);
    if (!work_.owners.empty() && work_.owners.back() == &row) {
      work_.rows.back().end = at + 1;
      return;
    }
    work_.owners.push_back(&row);
    work_.rows.push_back({.begin = at,
                          .end = at + 1,
                          .position = p + 1,
                          .planned_tokens = row.planned_tokens,
                          .blocks = row.kv.blocks(),
                          .first_key = 1});
  }

  Tensor forward() {
    const Tensor outputs = group_.module_.forward(own_step(), batch(), hiddens_.slice(0, size()));
    note_faults();
    return outputs;
  }
  void append_only() {
    group_.module_.append_only(own_step(), batch(), hiddens_.slice(0, size()));
    note_faults();
  }
  // The last token of a row of the batch.
  std::int64_t last_token(std::size_t row) const { return work_.rows[row].end - 1; }
  std::size_t rows() const { return work_.rows.size(); }

 private:
  RaggedBatch batch() const { return {work_.tokens, work_.rows}; }
  Step own_step() const {
    std::fill_n(work_.faults.begin(), size(), 0U);
    return {step_.device, step_.arena, work_.faults.data()};
  }
  void note_faults() const {
    for (std::size_t r = 0; r < work_.rows.size(); ++r)
      for (std::int64_t t = work_.rows[r].begin; t < work_.rows[r].end; ++t)
        if (work_.faults[static_cast<std::size_t>(t)] != 0) work_.owners[r]->faulty = true;
  }

  MtpRows& group_;
  Work& work_;
  const Step& step_;
  Arena::Scope scope_;
  Tensor hiddens_;
};

// Pairs whose output nobody needs, in as few passes as hold them.
class MtpRows::KnownPairs {
 public:
  KnownPairs(MtpRows& group, const Step& step) : group_(group), step_(step) {}
  void add(Row& row, std::int64_t p, std::int32_t token, const float* hidden) {
    if (pass_ && pass_->full()) run();
    if (!pass_) pass_.emplace(group_, step_);
    pass_->add(row, p, token, hidden);
  }
  // The carried pairs of a row; returns where its next pair goes.
  std::int64_t add_carried(Row& row) {
    std::int64_t p = row.draft_length(), i = 0;
    for (const std::int32_t token : row.carried) add(row, p++, token, row.hidden(row.now, group_.module_.width(), ++i));
    return p;
  }
  void run() {
    if (pass_) pass_->append_only();
    pass_.reset();
  }

 private:
  MtpRows& group_;
  const Step& step_;
  std::optional<Pass> pass_;
};

}  // namespace outrider
