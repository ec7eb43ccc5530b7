#include "models/decoder_parts.h"

#include <algorithm>

#include "base/error.h"

namespace outrider {

std::string layer_path(std::int64_t layer) { return fmt::format("model.layers.{}", layer); }

SwiGlu build_swiglu(ModuleBuilder& builder, std::string_view kind, const std::string& path, std::int64_t width,
                    std::int64_t ffn, HasBias bias) {
  SwiGlu mlp;
  mlp.gate_proj = builder.linear(kind, path + ".gate_proj", ffn, width, bias);
  mlp.up_proj = builder.linear(kind, path + ".up_proj", ffn, width, bias);
  mlp.down_proj = builder.linear(kind, path + ".down_proj", width, ffn, bias);
  return mlp;
}

std::vector<PhaseDecl> ragged_phases() {
  std::vector<PhaseDecl> phases;
  for (const Phase phase :
       {Phase::prompt, Phase::prompt_tail, Phase::append_known, Phase::verify, Phase::logits, Phase::sequence})
    phases.push_back({phase, 0, 0});
  phases.push_back({Phase::decode, 0, 1});
  return phases;
}

LinearWork work_of(const Linear& linear) { return work_of(linear.weight.view); }
LinearWork work_of(const PackedMatrix& weight) { return {weight.bytes(), weight.n * weight.k, weight.coded()}; }

std::size_t decoder_scratch_bytes(std::size_t block, const Rope& rope, const PackedMatrix& head, const Device& device,
                                  const StepLimits& limits) {
  const auto tensor_bytes = [](std::int64_t rows, std::int64_t width) {
    return arena_bytes(static_cast<std::size_t>(rows * width) * sizeof(float));
  };
  const std::size_t logits =
      tensor_bytes(limits.head_rows, head.k) + tensor_bytes(limits.head_rows, head.n) +
      device.linear_scratch_bytes(LinearOperation::norm_linear, limits.head_rows, head.k, input_form(head));
  return tensor_bytes(limits.tokens, head.k) + std::max(rope.scratch_bytes(limits.tokens) + block, logits);
}

}  // namespace outrider
