#include "engine/core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "base/worker_pool.h"

namespace outrider {
namespace {

// The most events a row's end takes: the rest of its text, and the end itself.
constexpr std::size_t kEventsOfAnEnd = 2;

RequestBounds bounds_of(const CoreParts& parts, const CoreLimits& limits) {
  const Declaration& model = parts.model->declaration();
  RequestBounds bounds;
  bounds.vocab = model.vocab;
  bounds.tokenizer_size =
      parts.tokenizer != nullptr ? std::min<std::int64_t>(parts.tokenizer->size(), model.vocab) : model.vocab;
  bounds.context_tokens = limits.context_tokens;
  bounds.kv_blocks = limits.schedule.kv_blocks;
  bounds.kv_bytes_per_block = model.kv.block_bytes();
  bounds.has_text = parts.tokenizer != nullptr;
  return bounds;
}

PrefixCapacity prefixes_of(const Model& model, const CoreLimits& limits) {
  return prefix_capacity(PrefixCache::parts_of(model, limits.speculation), limits.prefix_bytes);
}

// The rows' planned blocks and slots, and beyond them what stored prefixes may keep: so rows never wait for those.
StateCapacity capacity_of(const CoreLimits& limits, const PrefixCapacity& prefixes) {
  RecurrentCapacity recurrent = Core::recurrent_capacity(limits);
  recurrent.prefix_slots = prefixes.checkpoints;
  return {limits.schedule.kv_blocks, prefixes.blocks, recurrent};
}

}  // namespace

Core::Core(CoreParts parts, const CoreLimits& limits)
    : parts_(std::move(parts)),
      limits_(limits),
      bounds_(bounds_of(parts_, limits)),
      prefixes_(prefixes_of(*parts_.model, limits)),
      pool_({parts_.model->declaration().kv, parts_.model->declaration().recurrent}, capacity_of(limits, prefixes_)),
      arena_(scratch_bytes(*parts_.model, *parts_.device, limits)) {
  OUTRIDER_CHECK(limits.schedule.rows > 0 && limits.schedule.prefill_step_tokens > 0 && limits.head_rows > 0 &&
                 limits.schedule.prompt_rows > 0);
  parts_.device->reserve_normalizers(limits.head_rows, bounds_.vocab);
  std::sort(parts_.end_tokens.begin(), parts_.end_tokens.end());
  if (limits.speculation.depth > 0) {
    Speculation::Room room = draft_room(limits);
    room.prefix_blocks = prefixes_.blocks;
    speculation_ = std::make_unique<Speculation>(
        Speculation::Parts{parts_.model, parts_.device, parts_.chooser.get(), std::move(parts_.drafter), parts_.editor,
                           std::move(parts_.draft_vocabulary)},
        limits.speculation, room);
  }
  if (prefixes_.blocks > 0)
    prefix_ = std::make_unique<PrefixCache>(*parts_.model, pool_, speculation_.get(),
                                            PrefixCache::parts_of(*parts_.model, limits.speculation), prefixes_,
                                            parts_.model_key);
}

Core::~Core() = default;

Speculation::Room Core::draft_room(const CoreLimits& limits) {
  return {limits.schedule.rows, limits.schedule.kv_blocks, limits.schedule.prefill_step_tokens, limits.context_tokens};
}

std::size_t Core::scratch_bytes(const Model& model, const Device& device, const CoreLimits& limits) {
  // Masks of the rows that draft, then of those whose logits are computed at once.
  const std::int64_t masks = std::max(limits.schedule.rows, limits.head_rows);
  return model.scratch_bytes(device, step_limits(limits)) +
         Speculation::scratch_bytes(model, device, limits.speculation, draft_room(limits)) +
         static_cast<std::size_t>(masks) * tensor_bytes(1, mask_words(model.declaration().vocab));
}

StepLimits Core::step_limits(const CoreLimits& limits) {
  // Every row but one may decode beside a full prompt chunk; alone, the rows may all decode. Each in a whole window.
  const std::int64_t beside =
      limits.schedule.prefill_step_tokens + limits.schedule.rows * (limits.speculation.depth + 1) - 1;
  return {beside, limits.schedule.rows, limits.head_rows, limits.context_tokens};
}

Result<RequestId> Core::submit(Request request) {
  if (auto refusal = check_request(request, bounds_)) return tl::unexpected(std::move(*refusal));
  auto row = std::make_unique<EngineRow>();
  row->id = next_id_++;
  row->submitted = Clock::now();
  row->seed = request.sampling.seed ? *request.sampling.seed : random_seed();
  row->tokens = request.ids;
  row->prompt_tokens = static_cast<std::int64_t>(row->tokens.size());
  const std::int64_t answer = request.want == Want::generate ? request.max_tokens : 0;
  row->planned_tokens = row->prompt_tokens + answer;
  row->planned_blocks = planned_kv_blocks(row->prompt_tokens, answer);
  row->end_tokens = parts_.end_tokens;
  row->end_tokens.insert(row->end_tokens.end(), request.stop_token_ids.begin(), request.stop_token_ids.end());
  std::sort(row->end_tokens.begin(), row->end_tokens.end());
  row->text.emplace(parts_.tokenizer, request.stop, request.include_stop ? StopText::included : StopText::removed);
  if (request.rolled) row->roll = RowRoll(request.rolled->clone());
  row->request = std::move(request);
  const RequestId id = row->id;
  const std::lock_guard lock(news_mutex_);
  new_rows_.push_back(std::move(row));
  return id;
}

void Core::cancel(RequestId id) {
  const std::lock_guard lock(news_mutex_);
  new_cancels_.push_back(id);
}

bool Core::step(const Deliver& deliver) {
  enter_float_environment();
  take_news();
  admit_waiting();
  std::vector<Share> shares = plan_shares();
  outbox_.reserve(outbox_.size() + (kEventsOfAnEnd + 1) * shares.size());  // from here on events only move
  if (!shares.empty()) run_shares(shares, deliver);
  remove_left();
  if (consumer_error_) std::rethrow_exception(std::exchange(consumer_error_, nullptr));
  deliver_outbox(deliver);
  const std::lock_guard lock(news_mutex_);
  return !queue_.empty() || !active_.empty() || !new_rows_.empty();
}

// New requests join the queue; cancelled ones leave from wherever they are.
void Core::take_news() {
  std::vector<RequestId> cancels;
  {
    const std::lock_guard lock(news_mutex_);
    queue_.reserve(queue_.size() + new_rows_.size());
    outbox_.reserve(outbox_.size() + kEventsOfAnEnd * new_cancels_.size());
    std::move(new_rows_.begin(), new_rows_.end(), std::back_inserter(queue_));
    new_rows_.clear();
    cancels.swap(new_cancels_);
  }
  for (const RequestId id : cancels)
    for (auto* rows : {&queue_, &active_})
      for (const auto& row : *rows)
        if (row->id == id && !row->left) end_row(*row, FinishReason::cancelled, std::nullopt);
  remove_left();
}

void Core::admit_waiting() {
  if (queue_.empty()) return;
  Room room{limits_.schedule.rows - static_cast<std::int64_t>(active_.size()), limits_.schedule.kv_blocks};
  for (const auto& row : active_) room.blocks -= row->planned_blocks;
  std::vector<Waiting> waiting;
  for (const auto& row : queue_) waiting.push_back({row->planned_blocks, row->overtaken});
  const std::vector<std::size_t> admitted = admit(waiting, room);
  active_.reserve(active_.size() + admitted.size());
  std::vector<EngineRow*> joining;
  for (const std::size_t i : admitted) {
    queue_[i]->tokens.reserve(static_cast<std::size_t>(queue_[i]->planned_tokens));  // a commit never allocates
    queue_[i]->state.emplace(pool_);
    if (prefix_) prefix_->begin(*queue_[i]);
    joining.push_back(queue_[i].get());
  }
  if (speculation_) speculation_->admit(joining);
  // All that can fail is done.
  for (std::size_t i = 0; i < queue_.size(); ++i) queue_[i]->overtaken = waiting[i].overtaken;
  for (const std::size_t i : admitted) {
    queue_[i]->draft_start.reset();
    queue_[i]->admitted = Clock::now();
    queue_[i]->prompt_turn = ++prompt_turns_;
    active_.push_back(std::move(queue_[i]));
  }
  std::erase_if(queue_, [](const auto& row) { return row == nullptr; });
}

std::vector<Core::Share> Core::plan_shares() {
  std::vector<RowDemand> demands;
  for (const auto& row : active_)
    demands.push_back({row->in_prompt() ? RowDemand::Kind::prompt : RowDemand::Kind::decode, row->pending(),
                       row->state->length(), row->prompt_turn});
  const std::vector<std::int64_t> tokens = plan_step(demands, limits_.schedule, prompt_turns_);
  std::vector<Share> shares;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    active_[i]->prompt_turn = demands[i].turn;
    if (tokens[i] > 0) shares.push_back({active_[i].get(), tokens[i]});
  }
  return shares;
}

// Ends a row outside a step's commit: what text was held back, then its last event. The outbox has room for both.
void Core::end_row(EngineRow& row, FinishReason reason, std::optional<Refusal> error) noexcept {
  AnswerPiece rest;
  try {
    rest = row.text->finish(row.look());
  } catch (const std::exception&) {  // the row ends all the same; only the end of its text is lost
  }
  post_end(row, reason, std::move(error), std::move(rest.text), {});
}

// Nothing here allocates, given that room.
void Core::post_end(EngineRow& row, FinishReason reason, std::optional<Refusal> error, std::string rest,
                    std::string stop_match) noexcept {
  if (!rest.empty()) {
    Event event;
    event.request = row.id;
    event.text = std::move(rest);
    outbox_.push_back(std::move(event));
  }
  Event last = finished_event(row, reason);
  last.error = std::move(error);
  last.stop_match = std::move(stop_match);
  outbox_.push_back(std::move(last));
  row.left = true;
}

void Core::remove_left() {
  if (speculation_) speculation_->retire();
  for (auto* rows : {&queue_, &active_}) std::erase_if(*rows, [](const auto& row) { return row->left; });
}

// A callback that throws loses at most the event it was given; the others stay for the next step.
void Core::deliver_outbox(const Deliver& deliver) {
  struct Delivered {
    std::vector<Event>& events;
    std::ptrdiff_t count = 0;
    ~Delivered() { events.erase(events.begin(), events.begin() + count); }
  } delivered{outbox_};
  for (const Event& event : outbox_) {
    ++delivered.count;
    deliver(event);
  }
}

}  // namespace outrider
