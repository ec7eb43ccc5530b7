#include "engine/speculation.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/log.h"
#include "engine/sampler.h"

namespace outrider {
namespace {

DraftLimits draft_limits(const SpeculationLimits& limits, const Speculation::Room& room) {
  return {room.rows, limits.depth, std::max(room.chunk_tokens, limits.depth + 1), room.context_tokens};
}

// The model's head, where it has one that is used; else null.
const NativeDraft* head_of(const Model& model, const SpeculationLimits& limits) {
  return limits.depth > 0 && limits.head == SpeculationLimits::Head::use ? model.native_draft() : nullptr;
}

std::optional<MtpModule> module_of(const Model& model, const SpeculationLimits& limits,
                                   const DraftVocabulary* vocabulary = nullptr) {
  const NativeDraft* head = head_of(model, limits);
  if (head == nullptr) return std::nullopt;
  return MtpModule(*head, vocabulary, model.declaration().kv.type);
}

std::optional<DraftVocabulary> vocabulary_of(const Model& model, const SpeculationLimits& limits,
                                             std::vector<std::int32_t> ids) {
  const NativeDraft* head = head_of(model, limits);
  if (head == nullptr || limits.vocabulary_rows == 0) return std::nullopt;
  OUTRIDER_CHECK(std::ssize(ids) == limits.vocabulary_rows, "{} tokens for a draft vocabulary of {}", ids.size(),
                 limits.vocabulary_rows);
  return make_draft_vocabulary(*head->head, std::move(ids));
}

// What SpecRule::ratio keeps of a row's drafts.
std::size_t draft_scores_bytes(const Model& model, const SpeculationLimits& limits) {
  return static_cast<std::size_t>(limits.depth * model.declaration().vocab) * sizeof(float);
}

// What a rolled state says beside drafts; one that throws proposes nothing and ends a draft: the row goes on without.
template <class Ask, class Answer>
Answer asked(const EngineRow& row, Answer otherwise, Ask&& ask) {
  try {
    return std::forward<Ask>(ask)();
  } catch (const std::exception& error) {
    log(LogLevel::warning, "the rolled state of request {} failed beside drafts ({})", row.id, error.what());
    return otherwise;
  }
}
bool advanced(EngineRow& row, std::int32_t id) {
  return asked(row, false, [&] { return row.roll.advance(id); });
}

}  // namespace

// Chooses proposals as the target chooses tokens: the same processors, filters and noise, so that both agree where
// their distributions do (serving.md section 3, `greedy` and `coupled`); under `ratio` with noise of their own, and
// their distribution is kept with the row. Puts each behind its row's tokens at once: it is history for the next.
class Speculation::Port final : public DraftPort {
 public:
  Port(Speculation& speculation, std::int64_t vocab) : speculation_(speculation), vocab_(vocab) {}

  void choose(const Step& step, Tensor logits, std::span<const std::int32_t> ids, std::span<const DraftPick> picks,
              std::span<DraftChoice> out) override {
    const Arena::Scope scope(step.arena);
    std::vector<ChoosingRow> rows(picks.size());
    std::vector<Choice> choices(picks.size());
    const std::int64_t words = mask_words(vocab_);
    for (std::size_t i = 0; i < picks.size(); ++i) {
      EngineRow& row = *speculation_.rows_[static_cast<std::size_t>(picks[i].row)];
      rows[i] = {&row.request.sampling, row.tokens, row.prompt_tokens, picks[i].t, row.seed, row.end_tokens};
      rows[i].report = LogprobReport::none;
      if (row.by_ratio()) {  // not masked: a draft that a mask forbids is one the target rejects
        rows[i].drawing = Drawing::draft;
        rows[i].draft_scores = row.scores_of_draft(row.drafted, vocab_);
      } else if (row.roll) {
        const std::span<std::uint32_t> room{step.arena.take_of<std::uint32_t>(words), static_cast<std::size_t>(words)};
        std::fill(room.begin(), room.end(), 0U);
        rows[i].allowed = asked(row, std::span<const std::uint32_t>(room), [&] { return row.roll.mask(room); });
      }
    }
    speculation_.parts_.chooser->choose(step.device, ids.empty() ? logits : spread(step, logits, ids), rows, choices);
    for (std::size_t i = 0; i < picks.size(); ++i) {
      if (choices[i].failure || choices[i].id < 0) {
        out[i] = {choices[i].failure && choices[i].failure->code == no_token_left().code ? Picked::nothing
                                                                                         : Picked::failed};
        continue;
      }
      EngineRow& row = *speculation_.rows_[static_cast<std::size_t>(picks[i].row)];
      ProposalEditor* editor = speculation_.parts_.editor;
      const std::int32_t id = editor != nullptr ? editor->edit(row, picks[i].t, choices[i].id) : choices[i].id;
      if (!row.by_ratio() && !advanced(row, id)) continue;  // the row's draft ends here
      row.tokens.push_back(id);                             // within the capacity reserved at admission: see deepest()
      ++row.drafted;
      out[i] = {Picked::proposal, id};
    }
  }

 private:
  // Columns of a draft vocabulary at the places of their tokens; the others are -inf.
  Tensor spread(const Step& step, Tensor logits, std::span<const std::int32_t> ids) const {
    const Tensor wide = step.arena.tensor(logits.rows, vocab_);
    for (std::int64_t r = 0; r < logits.rows; ++r) {
      std::fill_n(wide.row(r), vocab_, -std::numeric_limits<float>::infinity());
      for (std::size_t c = 0; c < ids.size(); ++c) wide.row(r)[ids[c]] = logits.row(r)[c];
    }
    return wide;
  }

  Speculation& speculation_;
  std::int64_t vocab_;
};

Speculation::Speculation(Parts parts, const SpeculationLimits& limits, const Room& room)
    : parts_(std::move(parts)),
      limits_(limits),
      controller_({limits.depth, room.rows, limits.vocabulary_rows > 0 ? 2 : 1}),
      vocabulary_(vocabulary_of(*parts_.model, limits_, std::move(parts_.vocabulary))),
      module_(module_of(*parts_.model, limits_, vocabulary_ ? &*vocabulary_ : nullptr)),
      round_(nullptr) {
  OUTRIDER_CHECK(limits.depth > 0 && limits.depth <= kMaxDraftDepth, "a draft depth of {}", limits.depth);
  if (!module_) return;
  pool_ = std::make_unique<KvPool>(module_->kv_layout(), room.kv_blocks, room.prefix_blocks);
  mtp_ = std::make_unique<MtpRows>(*module_, *pool_, draft_limits(limits_, room), limits_.refresh);
  round_ = DraftRound(mtp_.get());
}

Speculation::~Speculation() = default;

std::size_t Speculation::weight_bytes(const Model& model, const SpeculationLimits& limits) {
  const NativeDraft* head = head_of(model, limits);
  return head != nullptr && limits.vocabulary_rows > 0 ? draft_vocabulary_bytes(*head->head, limits.vocabulary_rows)
                                                       : 0;
}

std::size_t Speculation::scratch_bytes(const Model& model, const Device& device, const SpeculationLimits& limits,
                                       const Room& room) {
  const std::optional<MtpModule> module = module_of(model, limits);
  if (!module) return 0;
  // A step's hiddens as the head was trained on, beside what the head itself takes; logits of the draft vocabulary lie
  // beside those of all tokens.
  return tensor_bytes(room.rows, limits.vocabulary_rows) +
         tensor_bytes(room.chunk_tokens + room.rows * (limits.depth + 1), module->width()) +
         MtpRows::scratch_bytes(*module, device, draft_limits(limits, room));
}

std::size_t Speculation::row_bytes(const Model& model, const SpeculationLimits& limits, std::int64_t row_tokens) {
  if (limits.depth == 0) return 0;
  const std::size_t text = limits.drafts_text ? NgramDrafter::bytes_for(limits.text, row_tokens) : 0;
  if (!module_of(model, limits)) return text;
  return text + MtpRows::row_bytes(model.declaration().width, draft_limits(limits, {1, 1, 1, 1})) +
         draft_scores_bytes(model, limits);
}

std::size_t Speculation::block_bytes(const Model& model, const SpeculationLimits& limits) {
  const std::optional<MtpModule> module = module_of(model, limits);
  return module ? module->kv_layout().block_bytes() : 0;
}

void Speculation::admit(std::span<EngineRow* const> rows) {
  if (limits_.drafts_text && parts_.drafter == nullptr)
    for (EngineRow* row : rows) row->text_drafts.emplace(limits_.text);
  if (!mtp_) return;
  std::vector<MtpJoin> joins;
  for (EngineRow* row : rows) {
    joins.push_back({row->draft_start ? &*row->draft_start : nullptr, row->planned_tokens,
                     row->keeps_drafts() ? MtpJoin::Head::with : MtpJoin::Head::without});
    if (row->by_ratio()) row->draft_scores = AlignedBuffer(draft_scores_bytes(*parts_.model, limits_), MemoryPart::kv);
  }
  rows_.reserve(rows_.size() + rows.size());
  PreparedStateChange change = mtp_->prepare_append(joins);
  change.commit();
  for (EngineRow* row : rows) {
    row->draft_row = static_cast<std::int64_t>(rows_.size());
    rows_.push_back(row);
  }
}

void Speculation::retire() {
  if (!mtp_) return;
  std::vector<std::int64_t> keep;
  for (const EngineRow* row : rows_)
    if (!row->left) keep.push_back(row->draft_row);
  if (keep.size() == rows_.size()) return;
  PreparedStateChange change = mtp_->prepare_filter(keep);
  change.commit();
  std::erase_if(rows_, [](const EngineRow* row) { return row->left; });
  for (std::size_t r = 0; r < rows_.size(); ++r) rows_[r]->draft_row = static_cast<std::int64_t>(r);
}

// A window must leave the budget one token behind its drafts, and what it emits must fit the row's capacity.
std::int64_t Speculation::deepest(const EngineRow& row) const {
  const std::int64_t asked = row.request.draft_tokens.value_or(limits_.depth);
  return std::clamp<std::int64_t>(row.request.max_tokens - row.generated() - 1, 0, std::min(asked, limits_.depth));
}

bool Speculation::drafts_by_head(const EngineRow& row) const { return mtp_ && !mtp_->without_head(row.draft_row); }

bool Speculation::is_fixed(const EngineRow& row) const {
  return limits_.depths == DraftDepths::fixed || row.request.draft_depths == DraftDepths::fixed;
}

// Depths by the controller, or as deep as each row may.
std::vector<std::int64_t> Speculation::plan(std::span<EngineRow* const> rows, std::span<Forced> forced) {
  std::vector<DepthController::Row> wishes(rows.size());
  std::vector<std::int64_t> depths(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EngineRow& row = *rows[i];
    if (row.text_drafts) {
      OUTRIDER_CHECK(row.drafted == 0 && row.text_drafts->size() <= std::ssize(row.tokens),
                     "{} tokens known as text, {} there, {} of them drafts", row.text_drafts->size(), row.tokens.size(),
                     row.drafted);
      row.text_drafts->append(std::span(row.tokens).subspan(static_cast<std::size_t>(row.text_drafts->size())));
    }
    const bool by_text = parts_.drafter != nullptr || (row.text_drafts && row.text_drafts->match_length() > 0);
    // What a row with fixed depths drafts depends on its own text alone.
    row.drafting = !by_text                                ? DraftSource::head
                   : drafts_by_head(row) && !is_fixed(row) ? controller_.source_of(row.acceptance)
                                                           : DraftSource::text;
    wishes[i] = {&row.acceptance, by_text || drafts_by_head(row) ? deepest(row) : 0, row.drafting};
    const auto room = std::span(forced[i]).first(static_cast<std::size_t>(deepest(row)));
    const std::int64_t certain = asked(row, std::int64_t{0}, [&] { return row.roll.forced(room); });
    if (certain == 0) continue;
    row.drafting = DraftSource::forced;
    wishes[i] = {&row.acceptance, certain, row.drafting};
  }
  // Under `ratio` the draft vocabulary is part of what decides the text: it is used or not once for all.
  const std::int64_t last_arm = vocabulary_ ? 1 : 0;
  const bool by_ratio = std::any_of(rows.begin(), rows.end(), [](const EngineRow* row) { return row->by_ratio(); });
  arm_ = last_arm;
  if (limits_.depths == DraftDepths::measured) {
    const std::int64_t planned = controller_.plan(wishes, depths, by_ratio ? std::optional(last_arm) : std::nullopt);
    if (std::any_of(depths.begin(), depths.end(), [](std::int64_t depth) { return depth > 0; })) arm_ = planned;
  }
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (is_fixed(*rows[i])) depths[i] = wishes[i].deepest;
  return depths;
}

// The runtime guard of models.md 4.6. Between rounds, when no change of the head's rows is prepared.
void Speculation::guard_head() {
  if (!mtp_ || head_accepted_ > 0 || head_drafted_ < kGuardDrafts) return;
  log(LogLevel::error,
      "the MTP head was right with none of its first {} drafted tokens and is not used any more; it may be attached "
      "with wrong norms or another hidden tap (see `outrider models info`)",
      head_drafted_);
  for (EngineRow* row : rows_) row->draft_row = -1;
  rows_.clear();
  round_ = DraftRound(nullptr);
  rows_without_head_ = mtp_->rows_without_head();
  mtp_.reset();  // its pool and module stay: copies of rows and stored prefixes may outlive them
  gave_head_up_ = true;
}

void Speculation::propose(const Step& step, std::span<EngineRow* const> rows) {
  guard_head();
  std::vector<Forced> forced(rows.size());
  const std::vector<std::int64_t> depths = plan(rows, forced);
  if (module_) module_->use(arm_ == 0 ? HeadRows::all : HeadRows::vocabulary);
  std::vector<DraftRound::Ask> asks(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EngineRow& row = *rows[i];
    row.ask = i;
    asks[i] = {row.draft_row, row.tokens.back(), depths[i], row.generated()};
    const auto room = std::span(forced[i]).first(static_cast<std::size_t>(depths[i]));
    if (row.drafting == DraftSource::forced) {
      asks[i].forced = room;
    } else if (parts_.drafter) {
      asks[i].forced = room.first(static_cast<std::size_t>(parts_.drafter->propose(row, room)));
      if (asks[i].forced.empty()) asks[i].depth = drafts_by_head(row) ? parts_.drafter->head_depth(row, depths[i]) : 0;
    } else if (row.drafting == DraftSource::text && row.text_drafts) {
      asks[i].text = &*row.text_drafts;
    }
  }
  Port port(*this, parts_.model->declaration().vocab);
  std::vector<RowResult> results(rows.size());
  try {
    round_.draft(step, asks, &port, results);
  } catch (...) {
    for (EngineRow* row : rows) row->drop_drafts();
    throw;
  }
  place_drafts(rows, asks);
}

// The port has put the head's proposals behind the tokens already; of a row that failed they do not stand. Of the
// others those stand that the row's masks allow, one behind the other; under `ratio` the first that they forbid, too:
// its place is decided as a rejection.
void Speculation::place_drafts(std::span<EngineRow* const> rows, std::span<const DraftRound::Ask> asks) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EngineRow& row = *rows[i];
    if (row.drafting != DraftSource::forced) row.drafting = round_.source(i);
    row.drop_drafts();
    for (const std::int32_t id : round_.proposals(i)) {
      const bool allowed = advanced(row, id);
      if (!allowed && !row.by_ratio()) break;
      row.tokens.push_back(id);  // within deepest()
      ++row.drafted;
      if (!allowed || row.ends_with(id)) break;
    }
    // The head was asked for all of them; a text offers what it has.
    const std::int64_t asked = row.drafting == DraftSource::head ? asks[i].depth : std::ssize(round_.proposals(i));
    const bool ended = row.drafted > 0 && row.ends_with(row.tokens.back());
    row.drafts_in_vain = row.drafted < asked && !ended && row.drafting != DraftSource::forced ? 1 : 0;
    row.roll.roll_back();
  }
}

std::vector<PreparedStateChange> Speculation::prepare_follow(const Step& step, std::span<Followed> rows) {
  std::vector<DraftRound::Verdict> verdicts;
  std::vector<MtpFeed> feeds;
  std::vector<Followed*> judged, fed;
  for (Followed& f : rows) {
    if (f.row->in_prompt()) {
      if (!drafts_by_head(*f.row)) continue;
      feeds.push_back({f.row->draft_row, f.tokens, f.context});
      fed.push_back(&f);
    } else {
      verdicts.push_back({f.row->ask, std::ssize(f.tokens) - 1, f.context});
      judged.push_back(&f);
    }
  }
  const auto note = [](std::span<Followed* const> of, std::span<const RowResult> results) {
    for (std::size_t i = 0; i < of.size(); ++i) of[i]->failed = results[i] == RowResult::failed;
  };
  std::vector<RowResult> results(std::max(verdicts.size(), feeds.size()));
  std::vector<PreparedStateChange> changes;
  changes.reserve(2);
  if (!verdicts.empty()) {
    changes.push_back(round_.prepare_commit(step, verdicts, std::span(results).first(verdicts.size())));
    note(judged, results);
  }
  if (!feeds.empty()) {
    changes.push_back(mtp_->prepare_prefill(step, feeds, std::span(results).first(feeds.size())));
    note(fed, results);
  }
  return changes;
}

std::optional<KvRow> Speculation::draft_prefix(const Step& step, const EngineRow& row, std::int64_t n) {
  const std::int64_t r = row.draft_row;
  if (!drafts_by_head(row) || n - 1 > mtp_->exact_length(r) + mtp_->carried(r)) return std::nullopt;
  return mtp_->share_prefix(step, r, n);
}

void Speculation::observe(std::span<const Outcome> rows, const DepthController::Times& times,
                          DepthController::Prompts prompts) {
  for (const Outcome& o : rows) {
    if (o.row->drafting != DraftSource::head) continue;
    head_drafted_ += o.drafted;
    head_accepted_ += o.accepted;
  }
  // Rounds that a request has made deeper are not the controller's: their loss is not to keep others from drafting.
  if (limits_.depths == DraftDepths::measured &&
      std::any_of(rows.begin(), rows.end(), [&](const Outcome& o) { return is_fixed(*o.row); }))
    return;
  std::vector<DepthController::RowOutcome> outcomes;
  for (const Outcome& o : rows)
    outcomes.push_back({&o.row->acceptance, o.drafted, o.accepted, o.row->drafting, o.row->drafts_in_vain});
  controller_.observe(arm_, outcomes, times, prompts);
}

}  // namespace outrider
