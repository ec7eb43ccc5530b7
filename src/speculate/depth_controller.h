// How deep every row drafts, by measured gain (runtime.md section 5, serving.md section 3).
//
// Tokens per second of a round = sum of expected tokens / (draft passes + one step over the window), from acceptances
// per row and place and from costs of steps and passes as measured in earlier rounds. The best set of depths is taken
// if it beats the plain step; where nothing does, speculation is off and is tried again now and then.
//
// What trials and errors may cost is bounded by a balance: a plain round adds kAllowance of its time to it, a round of
// drafts adds what it gained or takes what it lost against plain steps, and a round that could lose more than the
// balance is not begun. So the time of any run is at most 1 + kAllowance times that of plain steps, plus
// first_balance() steps and what one round exceeds its forecast by: never below 0.98x in the long run, whatever
// acceptance and costs do.
//
// Deterministic: it sees no clock, only the measurements it is given.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace outrider {

inline constexpr std::int64_t kMaxDraftDepth = 8;
inline constexpr std::int64_t kMaxDraftArms = 4;

// How often the proposals at each place were right, given that those before were; recent ones count more.
class AcceptanceHistory {
 public:
  void note(std::int64_t drafted, std::int64_t accepted);
  // `prior` counts like `weight` observations.
  double rate(std::int64_t place, double prior, double weight) const;

 private:
  struct Place {
    double tried = 0, right = 0;
  };
  std::array<Place, kMaxDraftDepth> places_{};
};

// Where a row's proposals of a round come from.
enum class DraftSource : std::uint8_t {
  head,   // passes of the draft head
  text,   // the text itself, at no draft cost
  forced  // masks that leave no other token: right for certain, so that nothing is learnt from them
};

// Kept with a request; of the head one history per arm.
struct RowAcceptance {
  std::array<AcceptanceHistory, kMaxDraftArms> arms;
  AcceptanceHistory text;
};

// Times of steps or passes by their size, in milliseconds.
class CostTable {
 public:
  explicit CostTable(std::int64_t largest) : costs_(static_cast<std::size_t>(largest) + 1) {}
  void note(std::int64_t size, double ms);
  bool knows(std::int64_t size) const { return times(size) > 0; }
  // How often it was noted.
  std::int64_t times(std::int64_t size) const { return costs_[static_cast<std::size_t>(size)].times; }
  // The mean, or a line between known sizes; outside of them the nearest. 0: nothing is known.
  double likely(std::int64_t size) const;
  // No less than likely(): beyond the known sizes it grows in proportion.
  double at_most(std::int64_t size) const;

 private:
  double mean(std::int64_t size) const { return costs_[static_cast<std::size_t>(size)].mean; }

  struct Cost {
    double mean = 0;
    std::int64_t times = 0;
  };
  std::vector<Cost> costs_;
};

class DepthController {
 public:
  static constexpr double kAllowance = 0.01;
  // Plain steps of `rows` rows: what the first proposal may cost while nothing is known of it.
  static constexpr double first_balance(std::int64_t rows) { return 1 + 3 / static_cast<double>(rows); }

  // An arm is a way to draft that rows share in a round: the full head, or a draft vocabulary. `rows`: most of a step.
  struct Limits {
    std::int64_t depth = 4;
    std::int64_t rows = 32;
    std::int64_t arms = 1;
  };
  explicit DepthController(const Limits& limits);

  struct Row {
    const RowAcceptance* acceptance = nullptr;
    std::int64_t deepest = 0;  // what budget, context and the request allow
    DraftSource source = DraftSource::head;
  };
  // For a row whose text repeats: text, unless its own past says that the head is right more often.
  DraftSource source_of(const RowAcceptance& row) const;
  // Chooses depths[i] for row i; returns the arm (0 when all depths are 0). only_arm: the one that may be chosen.
  std::int64_t plan(std::span<const Row> rows, std::span<std::int64_t> depths,
                    std::optional<std::int64_t> only_arm = std::nullopt);

  struct RowOutcome {
    RowAcceptance* acceptance = nullptr;
    std::int64_t drafted = 0, accepted = 0;
    DraftSource source = DraftSource::head;
    std::int64_t in_vain = 0;  // 1: another one was asked for behind them, and there was none that may stand
  };
  // After the round. prompts: whether the step also ran prompt chunks; its times then say nothing about windows.
  enum class Prompts : std::uint8_t { none, some };
  struct Times {
    double draft_ms = 0;   // passes, heads, choices
    double verify_ms = 0;  // the step, its head and choices
    double commit_ms = 0;  // the draft head follows what stands
    double step_ms() const { return verify_ms + commit_ms; }
  };
  void observe(std::int64_t arm, std::span<const RowOutcome> rows, const Times& times, Prompts prompts);

  struct Counters {
    std::int64_t rounds = 0, rounds_with_drafts = 0, trials = 0;
    std::int64_t emitted = 0;
    std::array<std::int64_t, kMaxDraftDepth> drafted{}, reached{}, accepted{};  // by place; reached: those before stood
    double draft_ms = 0, verify_ms = 0, commit_ms = 0;
    bool pays = false;  // whether the last plan expected a gain
  };
  const Counters& counters() const { return counters_; }
  double balance_ms() const { return balance_ms_; }

 private:
  struct Option {
    std::int64_t arm = 0;
    double rate = 0;                  // tokens per ms
    double most_ms = 0;               // a forecast that is seldom exceeded
    std::int64_t text = 0, head = 0;  // proposals
  };
  void list_increments(std::int64_t arm, std::span<const Row> rows);
  Option best_of_arm(std::int64_t arm, std::span<const Row> rows, double plain_ms);
  void set_depths(std::span<const Row> rows, const Option& option, std::span<std::int64_t> depths);
  void note_passes(CostTable& pass, double ms);
  double place_rate(const Row& row, std::int64_t arm, std::int64_t place) const;

  Limits limits_;
  CostTable steps_;                // by tokens of all windows
  std::vector<CostTable> passes_;  // per arm, by rows of the pass
  RowAcceptance all_rows_;
  // One more proposal for a row, by falling chance that it and those before it are right.
  struct Increment {
    double chance = 0;
    std::int32_t row = 0, place = 0;
    DraftSource source = DraftSource::head;
  };
  std::vector<Increment> increments_;
  std::int64_t text_increments_ = 0;     // of them, at the front
  std::vector<std::int64_t> passes_of_;  // rows of each pass of an option
  std::vector<std::int64_t> plain_age_;  // rounds since a plain step of so many rows was measured
  std::int64_t rounds_since_drafts_ = 0, next_trial_arm_ = 0;
  double balance_ms_ = 0;
  bool balance_began_ = false;
  double forecast_ms_ = 0;
  Counters counters_;
};

}  // namespace outrider
