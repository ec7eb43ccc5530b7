#include "models/decoder_parts.h"

#include <algorithm>

#include "base/error.h"

namespace outrider {

std::string layer_path(std::int64_t layer) { return fmt::format("model.layers.{}", layer); }

void build_embedding(ModuleBuilder& builder, const DecoderConfig& c, DecoderEnds& ends) {
  ends.embed_tokens = builder.embedding("embedding", "model.embed_tokens", c.vocab, c.width);
}

void build_norm_and_head(ModuleBuilder& builder, const DecoderConfig& c, DecoderEnds& ends) {
  ends.norm = builder.norm(kNormKind, "model.norm", c.width, c.norm_eps);
  if (c.head == HeadWeight::own) ends.lm_head = builder.linear("head", "lm_head", c.vocab, c.width, HasBias::no);
}

Tensor DecoderEnds::embed(const Step& step, const RaggedBatch& batch) const {
  const Tensor h = step.arena.tensor(batch.size(), embed_tokens.weight.view.k);
  step.device.embed(embed_tokens.weight.view, batch.tokens, h);
  return h;
}

void DecoderEnds::run_head(const Step& step, Tensor hidden, Tensor logits) const {
  const LinearPart part = {.weight = &head(), .out = logits};
  step.device.norm_linear(hidden, norm.data(), norm.eps, {&part, 1}, step.arena, step.faults);
}

void check_layer_range(const Step& step, const RaggedBatch& batch, Tensor h, const DecoderConfig& c, std::int64_t first,
                       std::int64_t last) {
  OUTRIDER_CHECK(first >= 0 && first <= last && last <= c.layers, "layers [{}, {}) of {}", first, last, c.layers);
  OUTRIDER_CHECK(h.rows == batch.size() && h.width == c.width && step.faults != nullptr,
                 "hidden [{}, {}] for {} tokens of width {}", h.rows, h.width, batch.size(), c.width);
}

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
  const std::size_t logits =
      tensor_bytes(limits.head_rows, head.k) + tensor_bytes(limits.head_rows, head.n) +
      device.linear_scratch_bytes(LinearOperation::norm_linear, limits.head_rows, head.k, input_form(head));
  return tensor_bytes(limits.tokens, head.k) + std::max(rope.scratch_bytes(limits.tokens) + block, logits);
}

}  // namespace outrider
