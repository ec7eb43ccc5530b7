// What a model is to the engine: a declaration (data), a forward over a ragged batch, a head (runtime.md section 6).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "layers/step.h"
#include "models/native_draft.h"
#include "weights/model_source.h"

namespace outrider {

enum class Phase : std::uint8_t { prompt, prompt_tail, append_known, decode, verify, logits, sequence };
enum class CacheKind : std::uint8_t { full, recurrent, sliding };
enum class Support : std::uint8_t { no, yes };

struct PhaseDecl {
  Phase phase;
  std::int64_t max_rows = 0;            // rows of one step; 0: the step limit
  std::int64_t max_tokens_per_row = 0;  // 0: the step limit
};

struct CacheLayerDecl {
  CacheKind kind = CacheKind::full;
  std::int64_t model_layer = 0;
};

// A Linear an adapter may attach to.
struct LoraTarget {
  std::string path;  // "model.layers.0.self_attn.q_proj"
  std::int64_t in = 0, out = 0;
  std::int64_t layer = 0;
};

// Data the graph states of itself; checked against the graph at load.
struct Declaration {
  std::string architecture;  // "llama"
  std::vector<PhaseDecl> phases;
  std::vector<CacheLayerDecl> cache_layers;  // in order
  KvLayout kv;                               // of the `full` layers
  RecurrentLayout recurrent;                 // of the `recurrent` layers
  std::vector<LoraTarget> lora_targets;
  std::int64_t layers = 0, width = 0, ffn = 0, vocab = 0;
  std::int64_t context_tokens = 0;  // longest prompt + answer
  Support embeddings = Support::no, hidden_tap = Support::yes, native_draft = Support::no, kv_codecs = Support::no;
  Support grammar = Support::no;
  std::string not_trainable;  // reason why there is no trainable part yet
};

// The limits scratch is sized from.
struct StepLimits {
  std::int64_t tokens = 512;    // T of one step
  std::int64_t rows = 32;       // rows of one step
  std::int64_t head_rows = 32;  // rows whose logits are computed in one step
  std::int64_t context_tokens = 0;
};

// Immutable after load; owns its packed weights. One step at a time.
class Model {
 public:
  virtual ~Model() = default;
  virtual const Declaration& declaration() const = 0;
  virtual std::size_t weight_bytes() const = 0;  // packed, as charged to MemoryPart::weights
  // Arena bytes of the largest step within `limits`: forward(), then hidden rows [head_rows, E] and logits [head_rows,
  // V] taken from the same arena, then head().
  virtual std::size_t scratch_bytes(const Device& device, const StepLimits& limits) const = 0;

  // [T,E]: the residual stream after the last layer, before the final norm (hidden_pre_norm). Writes K and V of the
  // batch's tokens into the rows' blocks. The tensor lives in step.arena: the caller opens the Arena::Scope.
  virtual Tensor forward(const Step& step, const RaggedBatch& batch) = 0;
  // Layers [first, last) without the final norm, in place on h, which is returned (runtime.md section 6).
  virtual Tensor run_layer_range(const Step& step, const RaggedBatch& batch, Tensor h, std::int64_t first,
                                 std::int64_t last) = 0;
  // logits [R,V] = head(final_norm(hidden [R,E])). step.faults has one entry per row of `hidden` here.
  virtual void head(const Step& step, Tensor hidden, Tensor logits) = 0;
  // Rows of other classes do not share state, whatever their tokens (Rope::length_class; models.md 2.2).
  virtual std::int64_t length_class(std::int64_t /*planned_tokens*/) const { return 0; }
  // The MTP head that was loaded with the model, null: none (Declaration::native_draft).
  virtual const NativeDraft* native_draft() const { return nullptr; }
};

// What one Linear costs a step: bytes read once, multiply-adds per token. `coded`: exact 16-bit products, else f32.
struct LinearWork {
  std::uint64_t bytes = 0;
  std::int64_t macs = 0;
  bool coded = false;
};

// What the steps of a model cost, for limits and predictions.
struct ModelWork {
  std::vector<LinearWork> layers;  // every Linear of the layers
  LinearWork head;
  std::int64_t attention_macs = 0;  // per query token and key, all layers and heads: scores and values
};

// What a model will cost before any tensor is read: from headers and config alone.
struct ModelPlan {
  Declaration declaration;
  Precision precision = Precision::packed;
  std::size_t weight_bytes = 0;  // packed
  std::int64_t parameters = 0;
  // "embedding", "attention", "delta_net", "mlp", "norm", "head", "mtp"
  std::vector<std::pair<std::string, std::size_t>> bytes_by_kind;
  ModelWork work;
};

// The registry (models.md section 5): `model_type` decides. Error (data): unknown or known-but-unsupported names with
// the reason, refused config values, missing or unused tensors (both lists).
ModelPlan plan_model(const ModelSource& source, Precision precision);
// The graph with shapes and no data: for what it says of its scratch and its draft head. Errors as plan_model().
std::unique_ptr<Model> plan_graph(const ModelSource& source, Precision precision);
std::unique_ptr<Model> load_model(ModelSource& source, Precision precision, Device& device);

}  // namespace outrider
