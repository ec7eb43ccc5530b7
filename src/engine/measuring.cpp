#include "engine/measuring.h"

#include <algorithm>
#include <chrono>

namespace outrider {
namespace {

// `base`: seconds of the base case in the same round.
double value_of(const BenchCase& c, double seconds, double base) {
  switch (c.quantity) {
    case Quantity::rate:
      return c.amount / seconds;
    case Quantity::time:
      return c.amount * seconds;
    case Quantity::slowdown:
      return seconds / base;
  }
  OUTRIDER_CHECK(false, "quantity {}", static_cast<int>(c.quantity));
}

// How far `value` is ahead of `other`: 1 when equal.
double ahead(Quantity quantity, double value, double other) {
  return quantity == Quantity::rate ? value / other : other / value;
}

// The median over rounds of the case's value; a ratio to the base is taken round by round.
double median_value(const BenchCase& c, std::span<const double> seconds, std::span<const double> base) {
  std::vector<double> values;
  for (std::size_t round = 0; round < seconds.size() && (!c.base || round < base.size()); ++round)
    values.push_back(value_of(c, seconds[round], c.base ? base[round] : 0));
  return median(std::move(values));
}

// Runs until `least` seconds are told, or as much has passed on our own clock twice: a rival may tell anything.
double mean_seconds(const std::function<double()>& run, double least) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double spent = 0;
  int runs = 0;
  do {
    spent += run();
    ++runs;
  } while (spent < least && std::chrono::duration<double>(Clock::now() - begin).count() < 2 * least);
  return spent / runs;
}

class LimitsOfRounds {
 public:
  void add(const MachineLimits& limits) {
    for (auto [kept, value] : {std::pair{&read_, limits.read_gb_per_s},
                               {&f32_, limits.f32_gmac_per_s},
                               {&i16_, limits.i16_gmac_per_s},
                               {&i8_, limits.i8_gmac_per_s}})
      kept->push_back(value);
  }
  MachineLimits middle() const { return {median(read_), median(f32_), median(i16_), median(i8_)}; }

 private:
  std::vector<double> read_, f32_, i16_, i8_;
};

}  // namespace

double median(std::vector<double> values) {
  OUTRIDER_CHECK(!values.empty());
  const std::size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<BenchRow> rows_of(std::span<const BenchCase> cases, std::span<const CaseTimes> times,
                              const MachineLimits& limits) {
  std::vector<BenchRow> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const BenchCase& c = cases[i];
    const CaseTimes none, &base = c.base ? times[*c.base] : none;
    if (times[i].seconds.empty() || (c.base && base.seconds.empty())) continue;
    BenchRow row;
    row.suite = c.suite;
    row.name = c.name;
    row.unit = c.unit;
    row.value = median_value(c, times[i].seconds, base.seconds);
    if (c.least_seconds) {
      const double least_of_base = c.base ? cases[*c.base].least_seconds(limits) : 0;
      row.limit = value_of(c, c.least_seconds(limits), least_of_base);
      row.of_limit = ahead(c.quantity, row.value, *row.limit);
    }
    bool told = false;
    for (std::size_t r = 0; r < c.rivals.size() && r < times[i].rivals.size(); ++r) {
      const std::span<const double> base_seconds =
          c.base && r < base.rivals.size() ? std::span<const double>(base.rivals[r]) : std::span<const double>();
      if (times[i].rivals[r].empty() || (c.base && base_seconds.empty())) continue;
      BenchRow with = row;
      with.peer = c.rivals[r].name;
      with.peer_value = median_value(c, times[i].rivals[r], base_seconds);
      with.ratio = ahead(c.quantity, row.value, *with.peer_value);
      rows.push_back(std::move(with));
      told = true;
    }
    if (!told) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<BenchRow> measure_by_turns(std::span<const BenchCase> cases, MachineProbe& probe, const Rounds& rounds) {
  std::vector<CaseTimes> times(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) times[i].rivals.resize(cases[i].rivals.size());
  const auto stopped = [&] { return rounds.stop && rounds.stop(); };
  LimitsOfRounds limits;
  for (int round = 0; round < rounds.count && !stopped(); ++round) {
    limits.add(probe.measure(rounds.probe_seconds));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto time = [&](const std::function<double()>& run, std::vector<double>& seconds) {
        if (stopped()) return;
        if (round == 0) {  // the first touch of caches and pages is no steady state, unless it is little of a long run
          const double first = run();
          if (first >= rounds.least_case_seconds) return seconds.push_back(first);
          if (stopped()) return;
        }
        seconds.push_back(mean_seconds(run, rounds.least_case_seconds));
      };
      time(cases[i].run, times[i].seconds);
      for (std::size_t r = 0; r < cases[i].rivals.size(); ++r) time(cases[i].rivals[r].run, times[i].rivals[r]);
    }
  }
  bool any = false;
  for (const CaseTimes& t : times) any = any || !t.seconds.empty();
  return any ? rows_of(cases, times, limits.middle()) : std::vector<BenchRow>();
}

}  // namespace outrider
