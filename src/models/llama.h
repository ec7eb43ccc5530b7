// The Llama-shaped decoder (models.md 2.1, 2.4): llama (MiniCPM5, SmolLM2, Llama 3), mistral, smollm3, qwen2, qwen3.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "layers/attention.h"
#include "layers/module_builder.h"
#include "layers/swiglu.h"
#include "models/decoder_parts.h"
#include "models/llama_config.h"
#include "models/model.h"

namespace outrider {

struct LlamaLayer {
  Norm input_layernorm;           // [E]
  Attention self_attn;            // q|k|v [.., E], o [E, H*D]
  Norm post_attention_layernorm;  // [E]
  SwiGlu mlp;                     // gate|up [F, E], down [E, F]
};

// All tensors of the graph; from a plan they have shapes and no data.
struct LlamaWeights : DecoderEnds {
  std::vector<LlamaLayer> layers;
};

LlamaWeights build_llama(ModuleBuilder& builder, const LlamaConfig& config);
// From planned or loaded weights.
ModelWork llama_work(const LlamaWeights& weights);
Declaration declare_llama(const LlamaConfig& config, Precision precision);
// Whether the family leaves this tensor of a checkpoint out on purpose.
bool llama_drops(const LlamaConfig& config, std::string_view tensor);

class Llama final : public Model {
 public:
  // `weight_bytes`: what the builder of `weights` counted.
  Llama(LlamaConfig config, LlamaWeights weights, std::size_t weight_bytes, Precision precision);

  const Declaration& declaration() const override { return declaration_; }
  std::size_t weight_bytes() const override { return weight_bytes_; }
  std::size_t scratch_bytes(const Device& device, const StepLimits& limits) const override;
  Tensor forward(const Step& step, const RaggedBatch& batch) override;
  Tensor run_layer_range(const Step& step, const RaggedBatch& batch, Tensor h, std::int64_t first,
                         std::int64_t last) override;
  void head(const Step& step, Tensor hidden, Tensor logits) override;
  std::int64_t length_class(std::int64_t planned_tokens) const override { return rope_.length_class(planned_tokens); }

 private:
  LlamaConfig config_;
  LlamaWeights weights_;
  std::size_t weight_bytes_;
  Declaration declaration_;
  Rope rope_;
};

}  // namespace outrider
