// The sampler: processors, log-softmax, filters, draw (serving.md section 2), every row for itself.
#pragma once

#include <vector>

#include "base/memory.h"
#include "engine/filters.h"
#include "engine/token_chooser.h"

namespace outrider {

// One engine thread at a time. Owns its workspace, planned as scratch.
class Sampler : public TokenChooser {
 public:
  // tokenizer_size: ids from there on are never chosen (P0). newlines: ids xtc spares, sorted.
  Sampler(std::int64_t vocab, std::int64_t tokenizer_size, std::vector<std::int32_t> newlines);

  void choose(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out) override;

  // Bytes the workspace takes; the device's own share is Device::normalizer_scratch_bytes().
  static std::size_t scratch_bytes(std::int64_t vocab);

 private:
  // What numerics.md section 7 needs to turn a logit into a log-probability: l = (z - max) - ln_sum.
  struct Normalizer {
    float max = 0;
    double ln_sum = 0;
    double logp(float z) const { return (static_cast<double>(z) - static_cast<double>(max)) - ln_sum; }
  };
  void choose_together(Device& device, Tensor logits, std::span<const ChoosingRow> rows, std::span<Choice> out);
  void finish_row(std::span<const float> z, const ChoosingRow& row, const Normalizer& norm, const Normalizer& raw_norm,
                  std::int32_t best, Choice& out);
  std::span<Candidate> candidates_of(std::span<const float> z, const Normalizer& norm);
  TokenLogprob report(std::span<const float> z, const Normalizer& norm, std::int32_t id, int top);

  std::int64_t vocab_, tokenizer_size_;
  std::vector<std::int32_t> newlines_;
  AlignedBuffer candidates_;  // Candidate [V]
  AlignedBuffer raw_;         // f32 [V]: a row before its processors, for LogprobsMode::raw
};

// The failures of one row.
Refusal numeric_error();
Refusal no_token_left();

}  // namespace outrider
