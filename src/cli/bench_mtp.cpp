#include "cli/bench_mtp.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "cli/comma_list.h"
#include "cli/option_layers.h"
#include "cli/option_values.h"

namespace outrider {
namespace {

constexpr std::int64_t kMostRows = 64;

constexpr const char* kByCommas = "separate them by commas";

BenchRow row_of(std::string name, double value, const char* unit) {
  return {"mtp", std::move(name), unit, value, {}, {}, "", {}, {}};
}

double share(std::int64_t part, std::int64_t all) {
  return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
}

void add_rounds(std::vector<BenchRow>& out, const std::string& name, const DraftTotals& t) {
  const auto of_round = [&](double ms) { return t.rounds > 0 ? ms / static_cast<double>(t.rounds) : 0; };
  out.push_back(row_of(name + ", tokens of a round", t.accepted_length(), "x"));
  for (std::size_t i = 0; i < t.drafted.size() && t.drafted[i] > 0; ++i) {
    out.push_back(
        row_of(fmt::format("{}, accepted at place {}", name, i + 1), share(t.accepted[i], t.reached[i]), "x"));
    out.push_back(row_of(fmt::format("{}, drafted at place {}", name, i + 1), share(t.drafted[i], t.row_rounds), "x"));
  }
  out.push_back(row_of(name + ", draft of a round", of_round(t.draft_ms), "ms"));
  out.push_back(row_of(name + ", verify of a round", of_round(t.verify_ms), "ms"));
  out.push_back(row_of(name + ", commit of a round", of_round(t.commit_ms()), "ms"));
}

// Rows for what was measured of `rows` rows.
std::vector<BenchRow> mtp_rows(std::int64_t rows, std::span<const DraftWay> ways, const DraftBench::Measured& measured,
                               double most_tokens_per_s) {
  std::vector<BenchRow> out;
  const double plain = measured.plain.tokens_per_s();
  BenchRow first = row_of(fmt::format("rows {}, plain", rows), plain, "tok/s");
  first.limit = most_tokens_per_s;
  first.of_limit = plain / most_tokens_per_s;
  out.push_back(std::move(first));
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const DraftTotals& t = measured.ways[w];
    const std::string name = fmt::format("rows {}, {}", rows, name_of(ways[w]));
    out.push_back(row_of(name, t.tokens_per_s(), "tok/s"));
    if (plain > 0) out.push_back(row_of(name + ", over plain", t.tokens_per_s() / plain, "x"));
    add_rounds(out, name, t);
  }
  return out;
}

}  // namespace

void MtpSuite::define(CLI::App& verb) {
  rows_flag_ = verb.add_option("--rows", rows_text_, "mtp: rows side by side, separated by commas (1,4,8)");
  depth_flag_ = add_whole(verb, "--depth", depth_, "mtp: most drafts of a row in a step (3)", {1, kMaxDraftDepth});
  acceptance_flag_ =
      verb.add_option("--acceptance", acceptance_text_,
                      "mtp: script the share of proposals that stands at each place, given those before it, such as "
                      "0.85,0.67,0.52, instead of what the head reaches on the held prompts");
  ways_flag_ = verb.add_option("--ways", ways_text_,
                               "mtp: beside plain decoding, of controller, off, and fixed depths such as 2 "
                               "(controller, off; without --acceptance each depth too)");
  vocabulary_flag_ =
      add_whole(verb, "--draft-vocab", vocabulary_,
                "mtp: tokens the head may draft from in place of all; 0: all (by the model, as run)", kFromZero);
  flags_ = {rows_flag_,
            depth_flag_,
            acceptance_flag_,
            ways_flag_,
            vocabulary_flag_,
            verb.add_flag("--readings", readings_,
                          "mtp: acceptance by hidden tap, refresh policy and, where unknown, the norms of the head")};
}

void MtpSuite::refuse_flags() const {
  for (const CLI::Option* flag : flags_)
    if (is_named(*flag))
      throw Error(ErrorKind::usage, fmt::format("{} is given, and the suite mtp is not asked for", flag->get_name()),
                  "name mtp as the suite, or leave the flag out");
}

// Readings are measured in a way of their own.
void MtpSuite::refuse_idle_flags() const {
  const std::array<const CLI::Option*, 4> idle = {rows_flag_, acceptance_flag_, ways_flag_, vocabulary_flag_};
  for (const CLI::Option* flag : idle)
    if (is_named(*flag))
      throw Error(ErrorKind::usage,
                  fmt::format("--readings and {} are both given, and the latter has nothing to act on: readings take "
                              "rows and text of their own, and drafts from all tokens",
                              flag->get_name()),
                  "leave one of them out");
}

// A share for each place; without --depth they say how deep drafts are.
std::vector<double> MtpSuite::acceptance() {
  if (acceptance_flag_->count() == 0) return {};
  std::vector<double> shares =
      comma_list<double>("--acceptance", acceptance_text_, "share from 0 to 1", kByCommas,
                         [](std::string_view piece) { return number_within(piece, 0.0, 1.0); });
  const std::int64_t places = std::ssize(shares);
  if (depth_flag_->count() > 0 && places != depth_)
    throw Error(ErrorKind::usage, fmt::format("--acceptance names {} places, --depth is {}", places, depth_),
                "name a share for each place, or leave --depth out");
  if (places > kMaxDraftDepth)
    throw Error(ErrorKind::usage, fmt::format("--acceptance names {} places, the most is {}", places, kMaxDraftDepth),
                "name fewer shares");
  depth_ = places;
  return shares;
}

std::vector<DraftWay> MtpSuite::ways() const {
  std::vector<DraftWay> all = {{DraftWay::Kind::controller, depth_}, {DraftWay::Kind::off, depth_}};
  if (ways_flag_->count() == 0) {
    for (std::int64_t d = 1; plan_.acceptance.empty() && d <= depth_; ++d) all.push_back({DraftWay::Kind::fixed, d});
    return all;
  }
  const std::string what = fmt::format("way to draft (controller, off, a depth from 1 to {})", depth_);
  const auto way_named = [&](std::string_view piece) -> std::optional<DraftWay> {
    for (const DraftWay& way : all)
      if (piece == name_of(way)) return way;
    if (const auto d = number_within<std::int64_t>(piece, 1, depth_)) return DraftWay{DraftWay::Kind::fixed, *d};
    return {};
  };
  std::vector<DraftWay> once;
  for (const DraftWay& way : comma_list<DraftWay>("--ways", ways_text_, what, kByCommas, way_named))
    if (std::find(once.begin(), once.end(), way) == once.end()) once.push_back(way);
  return once;
}

std::vector<std::int64_t> MtpSuite::rows() const {
  if (rows_flag_->count() == 0)
    return plan_.acceptance.empty() ? std::vector<std::int64_t>{1, 4, 8} : std::vector<std::int64_t>{1, 2, 4, 8};
  const auto count = [](std::string_view piece) { return number_within<std::int64_t>(piece, 1, kMostRows); };
  std::vector<std::int64_t> rows = comma_list<std::int64_t>(
      "--rows", rows_text_, fmt::format("whole number from 1 to {}", kMostRows), kByCommas, count);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

void MtpSuite::prepare(const LoadOptions& options, std::int64_t turns) {
  options_ = options;
  options_->draft_vocabulary_tokens = vocabulary_;
  if (readings_) {
    refuse_idle_flags();
    check_draft_readings(*options_, depth_);
    return;
  }
  plan_.acceptance = acceptance();
  plan_.turns = turns;
  plan_.ways = ways();
  plan_.rows = rows();
  DraftBench::check(*options_, plan_);
}

void MtpSuite::run(BenchReport& report, const std::function<void(MachineProbe&)>& tell_machine,
                   Progress::Wanted progress, const std::function<bool()>& stop) {
  if (readings_)
    run_readings(report, progress, stop);
  else
    run_ways(report, tell_machine, stop);
}

void MtpSuite::run_ways(BenchReport& report, const std::function<void(MachineProbe&)>& tell_machine,
                        const std::function<bool()>& stop) {
  constexpr double kProbeSeconds = 0.05;
  DraftBench bench(*options_, plan_);
  tell_machine(bench.probe());
  if (const std::int64_t tokens = bench.draft_vocabulary_tokens(); tokens > 0)
    report.add(std::vector{row_of("draft vocabulary", static_cast<double>(tokens), "tokens")});
  std::vector<std::vector<double>> gains(plan_.ways.size());  // over the counts of rows
  for (const std::int64_t rows : plan_.rows) {
    const MachineLimits limits = bench.probe().measure(kProbeSeconds);
    const DraftBench::Measured measured = bench.measure(rows, stop);
    if (measured.plain.tokens == 0) return;  // stopped before its first turn
    report.add(mtp_rows(rows, plan_.ways, measured, bench.most_tokens_per_s(rows, limits)));
    if (stop()) return;
    for (std::size_t w = 0; w < plan_.ways.size(); ++w)
      gains[w].push_back(measured.ways[w].tokens_per_s() / measured.plain.tokens_per_s());
  }
  std::vector<BenchRow> ends;
  for (std::size_t w = 0; w < plan_.ways.size(); ++w)
    if (const std::optional<double> end = rows_where_gain_ends(plan_.rows, gains[w]))
      ends.push_back(row_of(fmt::format("{}, pays up to", name_of(plan_.ways[w])), *end, "rows"));
  report.add(ends);
}

void MtpSuite::run_readings(BenchReport& report, Progress::Wanted progress, const std::function<bool()>& stop) const {
  const auto tell = [&](const std::string& line) {
    if (progress == Progress::Wanted::yes) std::fprintf(stderr, "readings: %s\n", line.c_str());
  };
  std::vector<DraftReading> readings;
  {
    Progress bar("readings", progress);
    readings = measure_draft_readings(
        *options_, depth_,
        [&](std::int64_t done, std::int64_t all) {
          if (done == 0) tell(fmt::format("answers of {} tokens in all are written, which takes its time", all));
          bar.update(static_cast<double>(done) / static_cast<double>(all));
        },
        stop);
  }
  std::vector<BenchRow> rows;
  for (const DraftReading& reading : readings) {
    const std::string name = "readings, " + name_of(reading);
    const auto add = [&](const std::string& what, const Estimate& estimate) {
      rows.push_back(row_of(name + ", " + what, estimate.value, "x"));
      rows.push_back(row_of(name + ", " + what + ", standard error", estimate.error, "x"));
    };
    for (std::size_t place = 0; place < reading.places(); ++place)
      add(fmt::format("accepted at place {}", place + 1), accepted_at(reading, place));
    add("tokens of a round", accepted_length(reading));
  }
  if (const std::optional<ReadingLead> lead = lead_of(readings)) {
    const std::string name = fmt::format("readings, {} over {}", lead->best, lead->second);
    rows.push_back(row_of(name + ", accepted at place 1", lead->difference.value, "x"));
    rows.push_back(row_of(name + ", standard error", lead->difference.error, "x"));
    tell(lead->is_clear()
             ? fmt::format("{} is ahead of {} by {:.1f} standard errors: record it in outrider.json", lead->best,
                           lead->second, lead->difference.value / lead->difference.error)
             : fmt::format("no reading is ahead of the next one by {} standard errors", ReadingLead::kClear));
  }
  report.add(rows);
}

}  // namespace outrider
