#include "engine/speed.h"

#include <algorithm>

#include "weights/local_models.h"

namespace outrider {
namespace {

constexpr double kGiga = 1e9;

double linear_seconds(const LinearWork& linear, const MachineLimits& limits, double tokens) {
  const double peak = linear.coded ? limits.i16_gmac_per_s : limits.f32_gmac_per_s;
  return std::max(static_cast<double>(linear.bytes) / limits.read_gb_per_s,
                  tokens * static_cast<double>(linear.macs) / peak) /
         kGiga;
}

// One step: `tokens` of each row behind `context`, `picks` rows of logits in all.
double step_seconds(const ModelWork& work, double kv_bytes_per_token, const MachineLimits& limits, double rows,
                    double tokens, double context, double picks) {
  double seconds = 0;
  for (const LinearWork& linear : work.layers) seconds += linear_seconds(linear, limits, rows * tokens);
  if (picks > 0) seconds += linear_seconds(work.head, limits, picks);
  // Token i of a row sees the context, the tokens before it and itself.
  const double pairs = rows * tokens * (context + (tokens + 1) / 2);
  const double kv_bytes = rows * (context + tokens) * kv_bytes_per_token;
  return seconds + std::max(kv_bytes / limits.read_gb_per_s,
                            pairs * static_cast<double>(work.attention_macs) / limits.f32_gmac_per_s) /
                       kGiga;
}

}  // namespace

double least_seconds(const ModelWork& work, std::uint64_t kv_bytes_per_token, const MachineLimits& limits,
                     const StepShape& shape) {
  const std::int64_t most = shape.rows == 1 ? kPromptStepTokens : shape.tokens;
  double seconds = 0;
  for (std::int64_t done = 0; done < shape.tokens; done += most) {
    const std::int64_t tokens = std::min(most, shape.tokens - done);
    std::int64_t picks = done + tokens == shape.tokens ? shape.rows : 0;
    if (shape.head == StepShape::Head::every) picks = shape.rows * tokens;
    seconds += step_seconds(work, static_cast<double>(kv_bytes_per_token), limits, static_cast<double>(shape.rows),
                            static_cast<double>(tokens), static_cast<double>(shape.context + done),
                            static_cast<double>(picks));
  }
  return seconds;
}

SpeedPrediction predict(const ModelPlan& model, const MachineLimits& limits, std::int64_t context_tokens) {
  const auto least = [&](const StepShape& shape) {
    return least_seconds(model.work, model.declaration.kv.token_bytes(), limits, shape);
  };
  const std::int64_t prompt = std::clamp<std::int64_t>(context_tokens, 1, kPromptStepTokens);
  SpeedPrediction out;
  out.machine = limits;
  out.context_tokens = context_tokens;
  out.decode_tokens_per_s = kDecodeShare / least({});
  out.decode_at_context_tokens_per_s = kDecodeShare / least({.context = std::max<std::int64_t>(0, context_tokens - 1)});
  out.prompt_tokens_per_s = kPromptShare * static_cast<double>(prompt) / least({.tokens = prompt});
  return out;
}

std::optional<SpeedPrediction> predict_speed(const LoadOptions& options, const MemoryPlan& plan) {
  // The process stays within the plan it prints: beside the buffer there is the program itself.
  constexpr std::uint64_t kProgramBytes = std::uint64_t{32} << 20;
  if (!plan.fits() || plan.planned_bytes < kProgramBytes + kLeastProbeBytes) return std::nullopt;
  const std::size_t room = std::min<std::uint64_t>(probe_bytes(), plan.planned_bytes - kProgramBytes);
  constexpr double kSecondsEach = 0.06;
  const auto device = make_cpu_device(options.threads);
  const MachineLimits limits = MachineProbe(*device, room).measure(kSecondsEach);
  const auto source = open_model_source(resolve_model(options.model), options.reading);
  return predict(plan_model(*source, options.precision), limits, plan.context_tokens);
}

}  // namespace outrider
