#include "speculate/mtp_module.h"

#include <algorithm>
#include <array>
#include <memory>

#include "base/error.h"

namespace outrider {

MtpModule::MtpModule(const NativeDraft& draft, const DraftVocabulary* vocabulary, FloatType kv_type)
    : draft_(draft),
      vocabulary_(vocabulary),
      head_rows_(vocabulary != nullptr ? HeadRows::vocabulary : HeadRows::all),
      rope_(draft.rope) {
  const AttentionShape& shape = draft.weights.self_attn.shape;
  kv_ = {1, shape.kv_heads, shape.head_width, kv_type};
  OUTRIDER_CHECK(draft.weights.fc.n() == width() && draft.weights.fc.k() == 2 * width() && head().k == width(),
                 "a draft head of width {} and a target of width {}", draft.weights.fc.n(), width());
}

void MtpModule::use(HeadRows rows) {
  OUTRIDER_CHECK(rows == HeadRows::all || vocabulary_ != nullptr, "a draft head without a vocabulary of its own");
  head_rows_ = rows;
}

std::span<const std::int32_t> MtpModule::head_ids() const {
  return head_rows_ == HeadRows::vocabulary ? std::span<const std::int32_t>(vocabulary_->ids)
                                            : std::span<const std::int32_t>();
}

// out [T,E] = fc of both normed halves, the embedding's first.
void MtpModule::fuse(const Step& step, const RaggedBatch& batch, Tensor hiddens, Tensor out) const {
  const MtpWeights& w = draft_.weights;
  OUTRIDER_CHECK(hiddens.rows == batch.size() && hiddens.width == width() && step.faults != nullptr,
                 "hiddens [{}, {}] for {} tokens of width {}", hiddens.rows, hiddens.width, batch.size(), width());
  Arena::Scope scope(step.arena);
  const Tensor both = step.arena.tensor(batch.size(), 2 * width());
  const Tensor embedded = both.columns(0, width()), hidden = both.columns(width(), width());
  step.device.embed(*draft_.embed_tokens, batch.tokens, embedded);
  step.device.rms_norm(embedded, w.pre_fc_norm_embedding.data(), w.pre_fc_norm_embedding.eps, embedded);
  step.device.rms_norm(hiddens, w.pre_fc_norm_hidden.data(), w.pre_fc_norm_hidden.eps, hidden);
  step.device.linear(both, std::array{w.fc.part(out)}, step.arena, step.faults);
}

// Draft row p lies at KV position p + 1 and turns by p.
RopeAngles MtpModule::angles(const Step& step, const RaggedBatch& batch) const {
  const std::size_t count = batch.rows.size();
  auto* const rows = step.arena.take_of<BatchRow>(static_cast<std::int64_t>(count));
  std::uninitialized_copy(batch.rows.begin(), batch.rows.end(), rows);
  for (std::size_t r = 0; r < count; ++r) {
    --rows[r].position;
    rows[r].first_key = 0;
  }
  return rope_.angles(step, {batch.tokens, {rows, count}});
}

Tensor MtpModule::forward(const Step& step, const RaggedBatch& batch, Tensor hiddens) {
  const MtpWeights& w = draft_.weights;
  const Tensor h = step.arena.tensor(batch.size(), width());
  fuse(step, batch, hiddens, h);
  Arena::Scope scope(step.arena);
  w.self_attn.forward(step, batch, angles(step, batch), kv_, 0, w.input_layernorm, h);
  w.mlp.forward(step, w.post_attention_layernorm, h);
  step.device.rms_norm(h, w.norm.data(), w.norm.eps, h);
  return h;
}

void MtpModule::append_only(const Step& step, const RaggedBatch& batch, Tensor hiddens) {
  const MtpWeights& w = draft_.weights;
  Arena::Scope scope(step.arena);
  const Tensor h = step.arena.tensor(batch.size(), width());
  fuse(step, batch, hiddens, h);
  w.self_attn.append_only(step, batch, angles(step, batch), kv_, 0, w.input_layernorm, h);
}

void MtpModule::head(const Step& step, Tensor outputs, Tensor logits) {
  const LinearPart part = {.weight = &head(), .out = logits};
  step.device.linear(outputs, {&part, 1}, step.arena, step.faults);
}

std::size_t MtpModule::scratch_bytes(const Device& device, const DraftLimits& limits) const {
  const MtpWeights& w = draft_.weights;
  const std::int64_t tokens = limits.chunk_tokens;
  const PackedMatrix& all = *draft_.head;  // the larger of the two
  const std::size_t fusing =
      tensor_bytes(tokens, 2 * width()) +
      device.linear_scratch_bytes(LinearOperation::linear, tokens, 2 * width(), input_form(w.fc.weight.view));
  // A pass over known pairs may hold a row per token, one of drafts at most limits.rows.
  const std::size_t turning =
      arena_bytes(static_cast<std::size_t>(tokens) * sizeof(BatchRow)) + rope_.scratch_bytes(tokens);
  const std::size_t block =
      std::max(w.self_attn.scratch_bytes(device, tokens, tokens, limits.context_tokens + limits.depth + 1),
               w.mlp.scratch_bytes(device, tokens));
  const std::size_t logits = tensor_bytes(limits.rows, all.n) +
                             device.linear_scratch_bytes(LinearOperation::linear, limits.rows, all.k, input_form(all));
  return std::max(tensor_bytes(tokens, width()) + std::max(fusing, turning + block), logits);
}

}  // namespace outrider
