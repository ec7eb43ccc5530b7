// Grouped-query attention with rotary positions over the rows' own KV blocks, plain or with an output gate, and its
// residual (models.md 2.1, 2.4, 3.2).
#pragma once

#include <cstdint>

#include "layers/modules.h"
#include "layers/rope.h"
#include "layers/step.h"

namespace outrider {

struct Attention {
  Linear q_proj;         // [H*D, E]; with shape.gate [H*2D, E], per head D queries and D gates
  Linear k_proj;         // [K*D, E]
  Linear v_proj;         // [K*D, E]
  Linear o_proj;         // [E, H*D]
  Norm q_norm;           // [D] or empty
  Norm k_norm;           // [D] or empty
  AttentionShape shape;  // norms point into this struct's buffers

  // h += o(attend(norm(h))), or h += o(attend(norm(h))*sigmoid(gate)), in place; k and v of the batch's tokens go to
  // cache layer `layer`.
  void forward(const Step& step, const RaggedBatch& batch, const RopeAngles& angles, const KvLayout& layout,
               std::int64_t layer, const Norm& norm, Tensor h) const;
  // The same bytes of k and v in the cache, and nothing else. h [T,E] is only read.
  void append_only(const Step& step, const RaggedBatch& batch, const RopeAngles& angles, const KvLayout& layout,
                   std::int64_t layer, const Norm& norm, Tensor h) const;
  // Of forward(); append_only() takes less.
  std::size_t scratch_bytes(const Device& device, std::int64_t tokens, std::int64_t rows,
                            std::int64_t context_tokens) const;
};

}  // namespace outrider
