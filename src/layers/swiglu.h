// The SwiGLU feed-forward block and its residual (models.md 2.1).
#pragma once

#include <cstdint>

#include "layers/modules.h"
#include "layers/step.h"

namespace outrider {

struct SwiGlu {
  Linear gate_proj;  // [F, E]
  Linear up_proj;    // [F, E]
  Linear down_proj;  // [E, F]

  // h += down(silu(gate(norm(h))) * up(norm(h))) in place.
  void forward(const Step& step, const Norm& norm, Tensor h) const;
  std::size_t scratch_bytes(const Device& device, std::int64_t tokens) const;
};

}  // namespace outrider
