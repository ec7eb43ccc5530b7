// The cases of the suites of `outrider bench`.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/bench_peer.h"
#include "engine/kernel_bench.h"
#include "engine/measuring.h"
#include "engine/step_bench.h"

namespace outrider {

// What the flags say of the shapes.
struct BenchShapes {
  std::vector<std::int64_t> contexts;  // decode
  std::vector<std::int64_t> prompts;   // tokens
  std::int64_t batch_rows = 8;
};

// A case of a model's suite before the model is loaded.
struct ShapeCase {
  std::string name, unit;
  Quantity quantity = Quantity::rate;
  double amount = 1;
  StepShape shape;
  std::optional<std::size_t> base;  // index within the suite
  double peak_share = 1;            // of the 16-bit peak that the limit counts with
};
// "decode", "prompt", "batch", "verify", or "peers", which is all of them.
std::vector<ShapeCase> shape_cases(const std::string& suite, const BenchShapes& shapes);
// The longest row of the cases.
std::int64_t needed_context(std::span<const ShapeCase> cases);

// The cases to measure on a loaded model, with those peers beside them that can run them. Both outlive the cases.
std::vector<BenchCase> step_cases(const std::string& suite, std::span<const ShapeCase> cases, StepBench& bench,
                                  std::span<const std::unique_ptr<BenchPeer>> peers);

// Products of one format (all counts of rows for 4 bit groups of 64, a few for the others), and attention.
std::vector<BenchCase> product_cases(const WeightFormat& format, KernelBench& bench);
std::vector<BenchCase> attention_cases(KernelBench& bench);

// "decode context 0" over what `outrider fit` predicts: rows to add for measured ones.
std::vector<BenchRow> prediction_rows(std::span<const BenchRow> measured);
// "batch 8, over one row" from "batch 1" and "batch 8".
std::vector<BenchRow> batch_gain_rows(std::span<const BenchRow> measured);

}  // namespace outrider
