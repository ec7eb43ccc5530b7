#include "layers/swiglu.h"

#include <algorithm>
#include <array>

namespace outrider {

void SwiGlu::forward(const Step& step, const Norm& norm, Tensor h) const {
  auto& [device, arena, faults, clamps] = step;
  Arena::Scope scope(arena);
  const Tensor gate = arena.tensor(h.rows, gate_proj.n());
  const Tensor up = arena.tensor(h.rows, up_proj.n());
  device.norm_linear(h, norm.data(), norm.eps, std::array{gate_proj.part(gate), up_proj.part(up)}, arena, faults);
  device.swiglu_linear(gate, up, down_proj.part(h, &h), arena, faults);
}

std::size_t SwiGlu::scratch_bytes(const Device& device, std::int64_t tokens) const {
  const std::size_t inner = tensor_bytes(tokens, gate_proj.n());
  const std::uint32_t forms = input_form(gate_proj.weight.view) | input_form(up_proj.weight.view);
  const std::size_t in = device.linear_scratch_bytes(LinearOperation::norm_linear, tokens, gate_proj.k(), forms);
  const std::size_t out = device.linear_scratch_bytes(LinearOperation::swiglu_linear, tokens, down_proj.k(),
                                                      input_form(down_proj.weight.view));
  return 2 * inner + std::max(in, out);
}

}  // namespace outrider
