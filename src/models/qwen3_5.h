// Qwen3.5 and 3.6, dense sizes (models.md section 3): gated delta net layers with a gated attention layer in between,
// and the MTP head that comes with the model (section 4).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "layers/attention.h"
#include "layers/gated_delta_net.h"
#include "layers/module_builder.h"
#include "layers/swiglu.h"
#include "models/decoder_parts.h"
#include "models/model.h"
#include "models/qwen3_5_config.h"

namespace outrider {

struct Qwen35Layer {
  Norm input_layernorm;                          // [E]
  std::variant<Attention, GatedDeltaNet> mixer;  // self_attn or linear_attn
  std::int64_t cache = 0;                        // its place among the layers of its kind
  Norm post_attention_layernorm;                 // [E]
  SwiGlu mlp;                                    // gate|up [F, E], down [E, F]
};

// All tensors of the graph; from a plan they have shapes and no data. Norms multiply as they are (weights/ shifted
// them).
struct Qwen35Weights : DecoderEnds {
  std::vector<Qwen35Layer> layers;
  std::optional<MtpWeights> mtp;  // of a head that is ready
};

// `facts` of the source.
Qwen35Weights build_qwen3_5(ModuleBuilder& builder, const Qwen35Config& config, const CheckpointFacts& facts);
ModelWork qwen3_5_work(const Qwen35Weights& weights);
Declaration declare_qwen3_5(const Qwen35Config& config, const Qwen35Weights& weights, Precision precision);
// Whether the family leaves this tensor of a checkpoint out on purpose.
bool qwen3_5_drops(const Qwen35Config& config, std::string_view tensor);

// What a head needs to be known by, beside its weights.
struct HeadIdentity {
  HiddenTap tap = HiddenTap::post_norm;
  std::string identity;  // ModelSource::mtp_identity()
};

class Qwen35 final : public Model {
 public:
  // `weight_bytes`: what the builder of `weights` counted. `head`: of weights.mtp, no matter without one.
  Qwen35(Qwen35Config config, Qwen35Weights weights, HeadIdentity head, std::size_t weight_bytes, Precision precision);

  const Declaration& declaration() const override { return declaration_; }
  std::size_t weight_bytes() const override { return weight_bytes_; }
  std::size_t scratch_bytes(const Device& device, const StepLimits& limits) const override;
  Tensor forward(const Step& step, const RaggedBatch& batch) override;
  Tensor run_layer_range(const Step& step, const RaggedBatch& batch, Tensor h, std::int64_t first,
                         std::int64_t last) override;
  void head(const Step& step, Tensor hidden, Tensor logits) override;
  std::int64_t length_class(std::int64_t planned_tokens) const override { return rope_.length_class(planned_tokens); }
  const NativeDraft* native_draft() const override { return draft_ ? &*draft_ : nullptr; }

 private:
  Qwen35Config config_;
  Qwen35Weights weights_;
  std::size_t weight_bytes_;
  Declaration declaration_;
  Rope rope_;
  std::optional<NativeDraft> draft_;  // borrows the embedding and head of weights_, owns the rest
};

}  // namespace outrider
