// Drafts against plain decoding on one loaded model: what `outrider bench mtp` measures. Every way to draft has an
// engine core of its own, and all are stepped by turns, so that a machine whose speed wanders is fair to them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft_stream.h"
#include "engine/machine.h"
#include "engine/plan.h"

namespace outrider {

struct DraftWay {
  enum class Kind : std::uint8_t {
    plain,       // an engine without speculation
    off,         // speculation loaded, and requests that want none
    controller,  // depths up to `depth` by measured gain
    fixed        // always `depth`
  };
  Kind kind = Kind::plain;
  std::int64_t depth = 0;
  bool operator==(const DraftWay&) const = default;
};
std::string name_of(const DraftWay& way);  // "plain", "off", "controller", "depth 2"

// Where a gain falls through 1, on a line between the neighbours among `rows` (ascending); nothing if it never does.
std::optional<double> rows_where_gain_ends(std::span<const std::int64_t> rows, std::span<const double> gains);

struct DraftBenchPlan {
  std::vector<DraftWay> ways;      // beside plain decoding
  std::vector<std::int64_t> rows;  // those that measure() will be asked for
  std::int64_t turns = 5;
  // The share of the proposals at each place that shall stand, given that those before it did; at least as many as the
  // deepest way has. Empty: the head's own, over the held prompts.
  std::vector<double> acceptance;
};

class DraftBench {
 public:
  // Loads the model with memory for all ways at the most rows, and a probe's buffer. Error: usage (no MTP head; no
  // tokenizer, which the held prompts need; a context that is too short), memory with the numbers.
  DraftBench(const LoadOptions& options, DraftBenchPlan plan);
  ~DraftBench();
  // The same errors, without loading anything.
  static void check(const LoadOptions& options, const DraftBenchPlan& plan);

  struct Measured {
    DraftTotals plain;
    std::vector<DraftTotals> ways;  // as planned
  };
  // `rows` requests side by side; real acceptance takes all held prompts, so many at a time. Error (runtime) when an
  // answer depends on the way. `stop` is asked between turns and ends the measuring early; may be empty.
  Measured measure(std::int64_t rows, const std::function<bool()>& stop);

  MachineProbe& probe() { return *probe_; }
  // Tokens that drafts may be taken from in place of all; 0: there is no such choice.
  std::int64_t draft_vocabulary_tokens() const;
  // Tokens a second that plain decoding of so many rows cannot exceed.
  double most_tokens_per_s(std::int64_t rows, const MachineLimits& limits) const;

 private:
  std::int64_t answer_tokens() const;
  std::vector<std::vector<Request>> groups(std::int64_t rows) const;
  void record_answer();
  std::unique_ptr<DraftStream> stream(const DraftWay& way, std::int64_t rows) const;
  std::vector<DraftTotals> measure_group(std::span<const std::unique_ptr<DraftStream>> streams,
                                         std::span<const Request> requests, std::int64_t warm_up,
                                         const std::function<bool()>& stop) const;

  LoadOptions options_;
  DraftBenchPlan plan_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<MachineProbe> probe_;
  ModelPlan model_plan_;
  std::vector<std::vector<std::int32_t>> prompts_;
  std::int64_t known_tokens_ = 0;            // of the tokenizer
  std::vector<std::int32_t> indispensable_;  // of a draft vocabulary
  std::vector<std::int32_t> answer_;         // to the one prompt of scripted acceptance
};

}  // namespace outrider
