// What the graphs of this room share: the parts around their mixers, and the plan of their scratch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layers/module_builder.h"
#include "layers/rope.h"
#include "layers/swiglu.h"
#include "models/decoder_config.h"
#include "models/model.h"

namespace outrider {

inline constexpr std::string_view kAttentionKind = "attention";
inline constexpr std::string_view kMlpKind = "mlp";
inline constexpr std::string_view kNormKind = "norm";

// "model.layers.<layer>"
std::string layer_path(std::int64_t layer);

// What stands before and behind the layers. From a plan: shapes and no data.
struct DecoderEnds {
  Embedding embed_tokens;         // [V, E]
  Norm norm;                      // [E]
  std::optional<Linear> lm_head;  // [V, E]; absent: tied

  const PackedMatrix& head() const { return lm_head ? lm_head->weight.view : embed_tokens.weight.view; }
  // The residual stream [T,E] before the first layer, in step.arena.
  Tensor embed(const Step& step, const RaggedBatch& batch) const;
  // Model::head().
  void run_head(const Step& step, Tensor hidden, Tensor logits) const;
};
// In the order of the graph: before its layers, and behind them.
void build_embedding(ModuleBuilder& builder, const DecoderConfig& config, DecoderEnds& ends);
void build_norm_and_head(ModuleBuilder& builder, const DecoderConfig& config, DecoderEnds& ends);

// What Model::run_layer_range() asks of its arguments (CHECK).
void check_layer_range(const Step& step, const RaggedBatch& batch, Tensor h, const DecoderConfig& config,
                       std::int64_t first, std::int64_t last);

// gate_proj, up_proj [ffn, width] and down_proj [width, ffn] under `path`.
SwiGlu build_swiglu(ModuleBuilder& builder, std::string_view kind, const std::string& path, std::int64_t width,
                    std::int64_t ffn, HasBias bias);

// One ragged forward serves every phase; zeros mean the limits of the step.
std::vector<PhaseDecl> ragged_phases();

LinearWork work_of(const Linear& linear);
LinearWork work_of(const PackedMatrix& weight);

// Arena bytes of the largest step (Model::scratch_bytes): the residual stream [T,E], then either the angles and the
// largest `block`, or the head's hidden rows and logits.
std::size_t decoder_scratch_bytes(std::size_t block, const Rope& rope, const PackedMatrix& head, const Device& device,
                                  const StepLimits& limits);

}  // namespace outrider
