// The suite `mtp` of `outrider bench`: what drafts of an MTP head give on this machine, and the readings of a head.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_report.h"
#include "cli/output.h"
#include "engine/draft_bench.h"
#include "engine/draft_readings.h"

namespace outrider {

class MtpSuite {
 public:
  void define(CLI::App& verb);
  // Error (usage) when a flag of this suite is given, and it is not asked for.
  void refuse_flags() const;
  // All that can be refused is refused here, before anything is loaded or measured. `runs`: the flag that gives turns.
  void prepare(const LoadOptions& options, std::int64_t turns);
  // Rows are reported as they come. `tell_machine` is called once, when the model is loaded.
  void run(BenchReport& report, const std::function<void(MachineProbe&)>& tell_machine, Progress::Wanted progress,
           const std::function<bool()>& stop);

 private:
  void refuse_idle_flags() const;
  std::vector<double> acceptance();
  std::vector<DraftWay> ways() const;
  std::vector<std::int64_t> rows() const;
  void run_ways(BenchReport& report, const std::function<void(MachineProbe&)>& tell_machine,
                const std::function<bool()>& stop);
  void run_readings(BenchReport& report, Progress::Wanted progress, const std::function<bool()>& stop) const;

  std::vector<CLI::Option*> flags_;
  CLI::Option *rows_flag_ = nullptr, *depth_flag_ = nullptr, *acceptance_flag_ = nullptr, *ways_flag_ = nullptr,
              *vocabulary_flag_ = nullptr;
  std::string rows_text_, acceptance_text_, ways_text_;
  std::int64_t depth_ = 3;
  std::optional<std::int64_t> vocabulary_;
  bool readings_ = false;
  std::optional<LoadOptions> options_;
  DraftBenchPlan plan_;
};

}  // namespace outrider
