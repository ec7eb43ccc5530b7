#include "layers/attention.h"

#include <algorithm>
#include <array>

namespace outrider {

void Attention::forward(const Step& step, const RaggedBatch& batch, const RopeAngles& angles, const KvLayout& layout,
                        std::int64_t layer, const Norm& norm, Tensor h) const {
  auto& [device, arena, faults, clamps] = step;
  Arena::Scope scope(arena);
  const Tensor attended = arena.tensor(batch.size(), o_proj.k());
  const Tensor q = arena.tensor(batch.size(), q_proj.n());  // its gates are read last
  {
    Arena::Scope projections(arena);
    const Tensor k = arena.tensor(batch.size(), k_proj.n());
    const Tensor v = arena.tensor(batch.size(), v_proj.n());
    device.norm_linear(h, norm.data(), norm.eps, std::array{q_proj.part(q), k_proj.part(k), v_proj.part(v)}, arena,
                       faults);
    device.rope_store(shape, angles, batch, layout, layer, q, k, v, faults, clamps);
    device.attention(shape, batch, layout, layer, q, attended, arena);
  }
  const LinearPart out = o_proj.part(h, &h);
  if (shape.gate == AttentionGate::none)
    device.linear(attended, {&out, 1}, arena, faults);
  else
    device.gated_linear(shape, attended, q, out, arena, faults);
}

void Attention::append_only(const Step& step, const RaggedBatch& batch, const RopeAngles& angles,
                            const KvLayout& layout, std::int64_t layer, const Norm& norm, Tensor h) const {
  auto& [device, arena, faults, clamps] = step;
  Arena::Scope scope(arena);
  const Tensor k = arena.tensor(batch.size(), k_proj.n());
  const Tensor v = arena.tensor(batch.size(), v_proj.n());
  device.norm_linear(h, norm.data(), norm.eps, std::array{k_proj.part(k), v_proj.part(v)}, arena, faults);
  AttentionShape without_queries = shape;
  without_queries.heads = 0;
  device.rope_store(without_queries, angles, batch, layout, layer, k.columns(0, 0), k, v, faults, clamps);
}

std::size_t Attention::scratch_bytes(const Device& device, std::int64_t tokens, std::int64_t rows,
                                     std::int64_t context_tokens) const {
  const std::uint32_t forms =
      input_form(q_proj.weight.view) | input_form(k_proj.weight.view) | input_form(v_proj.weight.view);
  const std::size_t inputs = device.linear_scratch_bytes(LinearOperation::norm_linear, tokens, q_proj.k(), forms);
  const std::size_t attending = device.attention_scratch_bytes(tokens, rows, shape, context_tokens);
  const LinearOperation last =
      shape.gate == AttentionGate::none ? LinearOperation::linear : LinearOperation::gated_linear;
  const std::size_t output = device.linear_scratch_bytes(last, tokens, o_proj.k(), input_form(o_proj.weight.view));
  const std::size_t projections =
      tensor_bytes(tokens, k_proj.n()) + tensor_bytes(tokens, v_proj.n()) + std::max(inputs, attending);
  return tensor_bytes(tokens, o_proj.k()) + tensor_bytes(tokens, q_proj.n()) + std::max(projections, output);
}

}  // namespace outrider
