#include "engine/draft_stream.h"

#include <algorithm>
#include <utility>

#include "engine/sampler.h"

namespace outrider {

ScriptedAcceptance::ScriptedAcceptance(std::vector<double> rates, std::span<const std::int32_t> answer,
                                       std::int64_t vocab)
    : answer_(answer), vocab_(vocab) {
  OUTRIDER_CHECK(vocab >= 2, "a vocabulary of {}", vocab);
  for (const double rate : rates) places_.push_back({rate});
}

std::int32_t ScriptedAcceptance::edit(const EngineRow& row, std::int64_t t, std::int32_t proposed) {
  const auto place = static_cast<std::size_t>(row.drafted), at = static_cast<std::size_t>(t);
  if (place >= places_.size() || at >= answer_.size()) return proposed;
  const std::int32_t right = answer_[at];
  const std::int32_t wrong = static_cast<std::int32_t>((right + 1) % vocab_);
  // Behind a wrong proposal nothing stands, and nothing is counted.
  for (std::size_t i = 0; i < place; ++i)
    if (row.tokens[row.tokens.size() - place + i] != answer_[at - place + i]) return wrong;
  Place& p = places_[place];
  ++p.reached;
  if (static_cast<double>(p.right) + 0.5 > p.rate * static_cast<double>(p.reached)) return wrong;
  ++p.right;
  return right;
}

double DraftTotals::accepted_length() const {
  return row_rounds > 0 ? static_cast<double>(tokens) / static_cast<double>(row_rounds) : 0;
}

DraftTotals& DraftTotals::operator+=(const DraftTotals& other) {
  rounds += other.rounds;
  row_rounds += other.row_rounds;
  tokens += other.tokens;
  ms += other.ms;
  draft_ms += other.draft_ms;
  verify_ms += other.verify_ms;
  drafted.resize(std::max(drafted.size(), other.drafted.size()));
  reached.resize(drafted.size());
  accepted.resize(drafted.size());
  for (std::size_t i = 0; i < other.drafted.size(); ++i) {
    drafted[i] += other.drafted[i];
    reached[i] += other.reached[i];
    accepted[i] += other.accepted[i];
  }
  return *this;
}

DraftStream::DraftStream(Model& model, Device& device, const CoreLimits& limits, std::int64_t known_tokens,
                         std::vector<std::int32_t> vocabulary, std::unique_ptr<ScriptedAcceptance> script)
    : script_(std::move(script)),
      core_({.model = &model,
             .device = &device,
             .chooser = std::make_unique<Sampler>(model.declaration().vocab, known_tokens, std::vector<std::int32_t>{}),
             .end_tokens = {},
             .editor = script_.get(),
             .draft_vocabulary = std::move(vocabulary)},
            limits),
      depth_(limits.speculation.depth) {}

bool DraftStream::all_decode() const {
  return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) { return !row.answer.ids.empty(); });
}
bool DraftStream::one_ended() const {
  return std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.ended; });
}

bool DraftStream::step() {
  return core_.step([this](const Event& event) {
    const auto row =
        std::find_if(rows_.begin(), rows_.end(), [&](const Row& each) { return each.id == event.request; });
    OUTRIDER_CHECK(row != rows_.end());
    row->answer.ids.insert(row->answer.ids.end(), event.ids.begin(), event.ids.end());
    if (!event.ids.empty()) row->answer.rounds.push_back(static_cast<std::int32_t>(event.ids.size()));
    emitted_ += std::ssize(event.ids);
    if (event.kind != Event::Kind::finished) return;
    row->ended = true;
    if (event.error) throw Error(ErrorKind::runtime, event.error->message);
  });
}

void DraftStream::begin(std::span<const Request> requests) {
  rows_.clear();
  emitted_ = 0;
  for (const Request& request : requests) {
    Result<RequestId> id = core_.submit(request);
    if (!id) throw Error(ErrorKind::usage, id.error().message);
    rows_.push_back({*id, {}, false});
  }
  while (!all_decode() && step()) {
  }
}

DraftTotals DraftStream::advance(std::int64_t tokens) {
  DraftTotals out;
  out.drafted.resize(static_cast<std::size_t>(depth_));
  out.reached.resize(static_cast<std::size_t>(depth_));
  out.accepted.resize(static_cast<std::size_t>(depth_));
  const auto counters = [this] {
    return core_.speculation() != nullptr ? core_.speculation()->counters() : DepthController::Counters{};
  };
  const DepthController::Counters before = counters();
  const std::int64_t first = emitted_, rows = std::ssize(rows_);
  const Clock::time_point begin = Clock::now();
  while (emitted_ - first < tokens * rows && !one_ended()) {
    step();
    ++out.rounds;
  }
  out.ms = ms_between(begin, Clock::now());
  out.tokens = emitted_ - first;
  out.row_rounds = out.rounds * rows;
  const DepthController::Counters after = counters();
  out.draft_ms = after.draft_ms - before.draft_ms;
  out.verify_ms = after.verify_ms - before.verify_ms;
  if (depth_ == 0) out.verify_ms = out.ms;  // nothing else is told apart
  for (std::size_t i = 0; i < out.drafted.size(); ++i) {
    out.drafted[i] = after.drafted[i] - before.drafted[i];
    out.reached[i] = after.reached[i] - before.reached[i];
    out.accepted[i] = after.accepted[i] - before.accepted[i];
  }
  return out;
}

std::vector<DraftStream::Answer> DraftStream::end() {
  for (const Row& row : rows_)
    if (!row.ended) core_.cancel(row.id);
  while (step()) {
  }
  std::vector<Answer> answers;
  for (Row& row : rows_) answers.push_back(std::move(row.answer));
  rows_.clear();
  return answers;
}

}  // namespace outrider
