// How fast steps can be: the limit a machine sets, and what is predicted from it before a model is loaded.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/engine.h"
#include "engine/machine.h"
#include "models/model.h"

namespace outrider {

// `rows` rows of `tokens` new tokens each, behind `context` committed ones of their own.
struct StepShape {
  // last: logits of each row's last token (decode, prompt); every: of all tokens (a verify window).
  enum class Head : std::uint8_t { last, every };
  std::int64_t rows = 1, tokens = 1, context = 0;
  Head head = Head::last;
};

// Tokens of one prompt step of one row: more are run as several steps.
inline constexpr std::int64_t kPromptStepTokens = 512;

// The least seconds a shape takes: for each Linear the larger of its bytes at the read bandwidth and its multiply-adds
// at the peak of its kind (16-bit for coded, f32 for dense weights), and for attention the larger of the KV bytes and
// its multiply-adds at the f32 peak. Norms, RoPE, softmax and sampling count as nothing.
double least_seconds(const ModelWork& work, std::uint64_t kv_bytes_per_token, const MachineLimits& limits,
                     const StepShape& shape);

// Shares of the limit that steps reach: what `outrider bench decode prompt` prints as "% of" for MiniCPM5-1B's shape in
// 4 bit on two AVX2 cores. Its rows "over the prediction of fit" are measured over predicted, and show when kernels
// have moved away from these numbers.
inline constexpr double kDecodeShare = 0.87;
inline constexpr double kPromptShare = 0.70;

struct SpeedPrediction {
  MachineLimits machine;
  double decode_tokens_per_s = 0;             // one row, context 0
  double decode_at_context_tokens_per_s = 0;  // one row, at the end of the planned context
  std::int64_t context_tokens = 0;
  double prompt_tokens_per_s = 0;  // a prompt of min(512, context) tokens
};
SpeedPrediction predict(const ModelPlan& model, const MachineLimits& limits, std::int64_t context_tokens);

// Measures the machine (about 0.3 s) and predicts for a plan that fits. Nothing when the plan does not fit, or its
// budget leaves no room for a buffer that says anything of the memory.
std::optional<SpeedPrediction> predict_speed(const LoadOptions& options, const MemoryPlan& plan);

}  // namespace outrider
