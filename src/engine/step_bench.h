// Single steps of a loaded model under a stopwatch, without requests: what `outrider bench` measures. Steps run the
// real forward, head and argmax over real KV rows; only the tokens and the committed KV values are made up, which no
// operation's time depends on.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/plan.h"
#include "engine/speed.h"
#include "state/state_row.h"

namespace outrider {

class StepBench {
 public:
  // Loads the model of `options` with memory for exactly these shapes and a probe's buffer. Error (memory) with the
  // numbers when they do not fit the budget, (usage) when a shape exceeds the model's context.
  StepBench(LoadOptions options, std::span<const StepShape> shapes);
  // The same errors, without loading anything.
  static void check(const LoadOptions& options, std::span<const StepShape> shapes);

  // Seconds of one run of `shape`, one of those given: one step, or the steps of one prompt. Changes nothing.
  double seconds(const StepShape& shape);

  const ModelPlan& model() const { return plan_.model; }
  const MemoryPlan& memory() const { return plan_.memory; }
  double least_seconds(const StepShape& shape, const MachineLimits& limits) const;
  MachineProbe& probe() { return *probe_; }

 private:
  using Rows = std::vector<StateRow>;
  Rows& rows_of(const StepShape& shape);
  void step(Rows& rows, std::int64_t tokens, std::int64_t planned_tokens, std::int64_t picks_per_row);

  std::unique_ptr<Device> device_;
  EnginePlan plan_;
  std::unique_ptr<Model> loaded_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<MachineProbe> probe_;
  std::map<std::pair<std::int64_t, std::int64_t>, Rows> rows_;  // by rows and context
};

}  // namespace outrider
