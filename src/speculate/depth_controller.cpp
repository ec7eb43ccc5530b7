#include "speculate/depth_controller.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace outrider {
namespace {

// Observations fade with about the last fifty.
constexpr double kFading = 0.98;
constexpr double kNewShare = 0.2;   // of a new time in a mean
constexpr double kHiccup = 4;       // a time so many times its forecast is the machine's matter, and counts as that
constexpr double kMargin = 1.02;    // gains below it are not told from noise
constexpr double kFirstRate = 0.7;  // of acceptance, before anything is known
constexpr double kRowPrior = 4;     // observations that all rows' acceptance counts for in a row's own
constexpr double kGroupPrior = 8;
constexpr double kMostBalance = 50;       // plain steps: old gains do not pay for long losses
constexpr double kCaution = 1.1;          // over a mean, in forecasts that must seldom be exceeded
constexpr std::int64_t kTrialEvery = 32;  // rounds without drafts between trials
// Rounds of drafts between measurements of the plain step: the first ones follow sooner, and sooner after one another.
constexpr std::int64_t kPlainMeasureFirst = 4, kPlainMeasureEvery = 64;
constexpr std::int64_t kFirstTimes = 3;  // the least counts of the first ones: those pay for memory not yet touched

std::int64_t plain_age_allowed(std::int64_t times) {
  return times > 4 ? kPlainMeasureEvery : kPlainMeasureFirst << std::max<std::int64_t>(times - 1, 0);
}

template <class Acceptance>
auto& history_of(Acceptance& row, DraftSource source, std::int64_t arm) {
  return source == DraftSource::text ? row.text : row.arms[static_cast<std::size_t>(arm)];
}

}  // namespace

void AcceptanceHistory::note(std::int64_t drafted, std::int64_t accepted) {
  for (std::int64_t i = 0; i < std::min(drafted, accepted + 1); ++i) {
    Place& place = places_[static_cast<std::size_t>(i)];
    place.tried = place.tried * kFading + 1;
    place.right = place.right * kFading + (i < accepted ? 1 : 0);
  }
}

double AcceptanceHistory::rate(std::int64_t place, double prior, double weight) const {
  const Place& p = places_[static_cast<std::size_t>(place)];
  return (p.right + prior * weight) / (p.tried + weight);
}

void CostTable::note(std::int64_t size, double ms) {
  Cost& cost = costs_[static_cast<std::size_t>(size)];
  if (cost.times < kFirstTimes)
    cost.mean = cost.times == 0 ? ms : std::min(cost.mean, ms);
  else
    cost.mean += kNewShare * (std::min(ms, kHiccup * cost.mean) - cost.mean);
  ++cost.times;
}

double CostTable::likely(std::int64_t size) const {
  if (knows(size)) return mean(size);
  std::int64_t low = size, high = size;
  while (low > 0 && !knows(low)) --low;
  while (high < std::ssize(costs_) && !knows(high)) ++high;
  const bool below = low > 0, above = high < std::ssize(costs_);
  if (!below && !above) return 0;
  if (!above) return mean(low);
  if (!below) return mean(high);
  const double share = static_cast<double>(size - low) / static_cast<double>(high - low);
  return mean(low) * (1 - share) + mean(high) * share;
}

double CostTable::at_most(std::int64_t size) const {
  std::int64_t low = size, high = size;
  while (low > 0 && !knows(low)) --low;
  while (high < std::ssize(costs_) && !knows(high)) ++high;
  if (high < std::ssize(costs_) || low == 0) return kCaution * likely(size);
  return kCaution * mean(low) * static_cast<double>(size) / static_cast<double>(low);
}

DepthController::DepthController(const Limits& limits) : limits_(limits), steps_(limits.rows * (limits.depth + 1)) {
  OUTRIDER_CHECK(limits.depth >= 0 && limits.depth <= kMaxDraftDepth && limits.rows > 0 && limits.arms > 0 &&
                     limits.arms <= kMaxDraftArms,
                 "depth {}, {} rows, {} arms", limits.depth, limits.rows, limits.arms);
  passes_.assign(static_cast<std::size_t>(limits.arms), CostTable(limits.rows));
  plain_age_.resize(static_cast<std::size_t>(limits.rows) + 1);
  increments_.reserve(static_cast<std::size_t>(limits.rows * limits.depth));
  passes_of_.reserve(static_cast<std::size_t>(limits.depth));
}

double DepthController::place_rate(const Row& row, std::int64_t arm, std::int64_t place) const {
  if (row.source == DraftSource::forced) return 1;
  const double all = history_of(all_rows_, row.source, arm).rate(place, kFirstRate, kGroupPrior);
  return history_of(*row.acceptance, row.source, arm).rate(place, all, kRowPrior);
}

DraftSource DepthController::source_of(const RowAcceptance& row) const {
  const double text = place_rate({&row, 1, DraftSource::text}, 0, 0);
  double head = 0;
  for (std::int64_t arm = 0; arm < limits_.arms; ++arm)
    head = std::max(head, place_rate({&row, 1, DraftSource::head}, arm, 0));
  return text >= head ? DraftSource::text : DraftSource::head;
}

// More proposals for rows of this arm, by falling chance that they stand; those of the text, which cost no pass, first.
void DepthController::list_increments(std::int64_t arm, std::span<const Row> rows) {
  increments_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    double chance = 1;
    for (std::int64_t place = 0; place < std::min(rows[r].deepest, limits_.depth); ++place) {
      chance *= place_rate(rows[r], arm, place);
      increments_.push_back({chance, static_cast<std::int32_t>(r), static_cast<std::int32_t>(place), rows[r].source});
    }
  }
  // Chances do not rise with the place, so a row's proposals come in order.
  std::sort(increments_.begin(), increments_.end(), [](const Increment& a, const Increment& b) {
    return std::tuple(a.source == DraftSource::head, -a.chance, a.place, a.row) <
           std::tuple(b.source == DraftSource::head, -b.chance, b.place, b.row);
  });
  text_increments_ = std::count_if(increments_.begin(), increments_.end(),
                                   [](const Increment& i) { return i.source != DraftSource::head; });
}

// The best numbers of proposals from text and head, taken in the order of the list, of those whose loss the balance
// covers; rate = 0: it covers none.
DepthController::Option DepthController::best_of_arm(std::int64_t arm, std::span<const Row> rows, double plain_ms) {
  list_increments(arm, rows);
  const CostTable& pass = passes_[static_cast<std::size_t>(arm)];
  const auto count = std::ssize(rows);
  Option best{.arm = arm};
  const auto consider = [&](double tokens, double draft_ms, double draft_most, std::int64_t text, std::int64_t head) {
    const std::int64_t window = count + text + head;
    const double rate = tokens / (draft_ms + steps_.likely(window)), most_ms = draft_most + steps_.at_most(window);
    if (rate > best.rate && most_ms - plain_ms <= balance_ms_) best = {arm, rate, most_ms, text, head};
  };
  double tokens = static_cast<double>(count);
  for (std::int64_t i = 0; i < text_increments_; ++i) {
    tokens += increments_[static_cast<std::size_t>(i)].chance;
    consider(tokens, 0, 0, i + 1, 0);
  }
  const std::int64_t text = best.text;
  tokens = static_cast<double>(count);
  for (std::int64_t i = 0; i < text; ++i) tokens += increments_[static_cast<std::size_t>(i)].chance;
  passes_of_.assign(static_cast<std::size_t>(limits_.depth), 0);
  double draft_ms = 0, draft_most = 0;
  const auto cost = [&](std::int64_t size) { return size == 0 ? 0.0 : pass.likely(size); };
  // A pass that was never measured is taken for nothing when choosing, and for a whole step when a loss is at stake.
  const auto most = [&](std::int64_t size) {
    return size == 0 ? 0.0 : pass.likely(size) == 0 ? plain_ms : pass.at_most(size);
  };
  for (std::int64_t i = text_increments_; i < std::ssize(increments_); ++i) {
    const Increment& increment = increments_[static_cast<std::size_t>(i)];
    std::int64_t& in_pass = passes_of_[static_cast<std::size_t>(increment.place)];
    draft_ms += cost(in_pass + 1) - cost(in_pass);
    draft_most += most(in_pass + 1) - most(in_pass);
    ++in_pass;
    tokens += increment.chance;
    consider(tokens, draft_ms, draft_most, text, i + 1 - text_increments_);
  }
  return best;
}

std::int64_t DepthController::plan(std::span<const Row> rows, std::span<std::int64_t> depths,
                                   std::optional<std::int64_t> only_arm) {
  const auto count = std::ssize(rows);
  OUTRIDER_CHECK(count <= limits_.rows && rows.size() == depths.size() && only_arm.value_or(0) < limits_.arms,
                 "{} rows of {}, {} arms", count, limits_.rows, limits_.arms);
  std::fill(depths.begin(), depths.end(), 0);
  forecast_ms_ = 0;
  counters_.pays = false;
  if (count == 0 || limits_.depth == 0) return 0;
  // The plain step of so many rows is measured first, and again now and then while drafts hide it.
  if (!steps_.knows(count) || plain_age_[static_cast<std::size_t>(count)] >= plain_age_allowed(steps_.times(count)))
    return 0;
  const double plain_ms = steps_.likely(count);
  Option best;
  for (std::int64_t arm = 0; arm < limits_.arms; ++arm) {
    if (only_arm.value_or(arm) != arm) continue;
    if (const Option option = best_of_arm(arm, rows, plain_ms); option.rate > best.rate) best = option;
  }
  counters_.pays = best.rate > kMargin * static_cast<double>(count) / plain_ms;
  if (!counters_.pays) {
    if (rounds_since_drafts_ < kTrialEvery) return 0;
    best = best_of_arm(only_arm.value_or(next_trial_arm_), rows, plain_ms);
    if (best.rate == 0) return 0;
    if (!only_arm) next_trial_arm_ = (next_trial_arm_ + 1) % limits_.arms;
    ++counters_.trials;
  }
  forecast_ms_ = best.most_ms;
  set_depths(rows, best, depths);
  return best.arm;
}

void DepthController::set_depths(std::span<const Row> rows, const Option& option, std::span<std::int64_t> depths) {
  list_increments(option.arm, rows);  // that of another arm may be there
  const auto take = [&](std::int64_t begin, std::int64_t count) {
    for (const Increment& i :
         std::span(increments_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)))
      depths[static_cast<std::size_t>(i.row)] = i.place + 1;
  };
  take(0, option.text);
  take(text_increments_, option.head);
}

void DepthController::observe(std::int64_t arm, std::span<const RowOutcome> rows, const Times& times, Prompts prompts) {
  OUTRIDER_CHECK(arm >= 0 && arm < limits_.arms && std::ssize(rows) <= limits_.rows, "arm {} of {}, {} rows", arm,
                 limits_.arms, rows.size());
  std::int64_t window = 0, emitted = 0, in_vain = 0;
  passes_of_.assign(static_cast<std::size_t>(limits_.depth), 0);
  for (const RowOutcome& row : rows) {
    OUTRIDER_CHECK(row.accepted >= 0 && row.accepted <= row.drafted && row.in_vain >= 0 &&
                       row.drafted + row.in_vain <= limits_.depth,
                   "{} of {} proposals accepted, {} in vain", row.accepted, row.drafted, row.in_vain);
    const std::int64_t asked = row.drafted + row.in_vain;
    if (row.source != DraftSource::forced) {
      history_of(*row.acceptance, row.source, arm).note(asked, row.accepted);
      history_of(all_rows_, row.source, arm).note(asked, row.accepted);
    }
    for (std::int64_t i = 0; row.source == DraftSource::head && i < asked; ++i)
      ++passes_of_[static_cast<std::size_t>(i)];
    for (std::int64_t i = 0; i < row.drafted; ++i) {
      ++counters_.drafted[static_cast<std::size_t>(i)];
      if (i <= row.accepted) ++counters_.reached[static_cast<std::size_t>(i)];
      if (i < row.accepted) ++counters_.accepted[static_cast<std::size_t>(i)];
    }
    in_vain += row.in_vain;
    window += row.drafted + 1;
    emitted += row.accepted + 1;
  }
  const auto count = std::ssize(rows);
  const bool drafted = window > count || in_vain > 0;
  ++counters_.rounds;
  counters_.rounds_with_drafts += drafted ? 1 : 0;
  counters_.emitted += emitted;
  counters_.draft_ms += times.draft_ms;
  counters_.verify_ms += times.verify_ms;
  counters_.commit_ms += times.commit_ms;
  rounds_since_drafts_ = drafted ? 0 : rounds_since_drafts_ + 1;
  if (count == 0 || prompts == Prompts::some) return;

  std::int64_t& age = plain_age_[static_cast<std::size_t>(count)];
  age = drafted ? age + 1 : 0;
  if (!drafted) {
    // What keeping the draft rows aligned costs is part of the plain round.
    const double ms = times.draft_ms + times.step_ms();
    steps_.note(count, ms);
    const double plain_ms = steps_.likely(count);
    if (!std::exchange(balance_began_, true)) balance_ms_ = first_balance(count) * plain_ms;
    balance_ms_ = std::min(balance_ms_ + kAllowance * ms, kMostBalance * plain_ms);
    return;
  }
  if (!balance_began_) return;  // the caller drafts without a plan, before any plain step was seen
  const double plain_ms = steps_.likely(count);
  double spent = times.draft_ms + times.step_ms();
  if (forecast_ms_ > 0) spent = std::min(spent, kHiccup * forecast_ms_);
  balance_ms_ += static_cast<double>(emitted) / static_cast<double>(count) * plain_ms - spent;
  balance_ms_ = std::min(balance_ms_, kMostBalance * plain_ms);
  steps_.note(window, times.step_ms());
  note_passes(passes_[static_cast<std::size_t>(arm)], times.draft_ms);
}

// The time of all passes is shared out in proportion to what is known of each, at first by their number.
void DepthController::note_passes(CostTable& pass, double ms) {
  double known = 0;
  std::int64_t count = 0;
  for (const std::int64_t size : passes_of_) {
    if (size == 0) continue;
    known += pass.likely(size);
    ++count;
  }
  // All shares are taken from what was known before this round.
  std::array<double, kMaxDraftDepth> share{};
  for (std::size_t i = 0; i < passes_of_.size(); ++i)
    share[i] = known > 0 ? pass.likely(passes_of_[i]) * ms / known : ms / static_cast<double>(count);
  for (std::size_t i = 0; i < passes_of_.size(); ++i)
    if (passes_of_[i] > 0) pass.note(passes_of_[i], share[i]);
}

}  // namespace outrider
