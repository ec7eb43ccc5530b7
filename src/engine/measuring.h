// Measuring cases by turns: every round probes the machine and runs each case (and its rivals) once, so that a machine
// whose speed wanders is fair to all of them. Values are medians over the rounds.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/machine.h"

namespace outrider {

// What the seconds of a run become.
enum class Quantity : std::uint8_t {
  rate,     // amount / seconds
  time,     // amount * seconds
  slowdown  // seconds / those of the base case
};

// Another program that runs the same case.
struct Rival {
  std::string name;
  std::function<double()> run;  // seconds of one run
};

struct BenchCase {
  std::string suite, name, unit;  // "decode", "context 2048", "tok/s"
  Quantity quantity = Quantity::rate;
  double amount = 1;
  std::function<double()> run;                                // seconds of one run
  std::function<double(const MachineLimits&)> least_seconds;  // empty: no limit is known
  std::optional<std::size_t> base;                            // index of the base case
  std::vector<Rival> rivals;
};

// One line of the result. of_limit: 1 is the limit, below it slower. ratio: above 1, ahead of the peer.
struct BenchRow {
  std::string suite, name, unit;
  double value = 0;
  std::optional<double> limit, of_limit;
  std::string peer;
  std::optional<double> peer_value, ratio;
};

struct Rounds {
  int count = 5;
  double probe_seconds = 0.05;      // for each limit of the machine, per round
  double least_case_seconds = 0.1;  // short runs are repeated for so long, and their mean taken
  std::function<bool()> stop;       // asked before every run; may be empty
};

// Rows of the cases in order, a row per rival where a case has any. A stop leaves the rows of the rounds so far: cases
// never run are left out.
std::vector<BenchRow> measure_by_turns(std::span<const BenchCase> cases, MachineProbe& probe, const Rounds& rounds);

// The middle value, or the mean of the two; values not empty.
double median(std::vector<double> values);

// What was measured of one case, per round, made into rows.
struct CaseTimes {
  std::vector<double> seconds;
  std::vector<std::vector<double>> rivals;  // [rival][round]
};
std::vector<BenchRow> rows_of(std::span<const BenchCase> cases, std::span<const CaseTimes> times,
                              const MachineLimits& limits);

}  // namespace outrider
