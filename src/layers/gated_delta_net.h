// The gated delta net: a recurrent mixer over the rows' slots, and its residual (models.md 3.3).
#pragma once

#include <cstdint>

#include "layers/modules.h"
#include "layers/step.h"
#include "weights/checkpoint_facts.h"

namespace outrider {

// The epsilon of the norms of q and k: 1e-6, or Dk*1e-6.
float l2_epsilon(L2Epsilon form, std::int64_t key_width);

// The kernels of a depthwise convolution [C][taps], as checkpoints hold them, by tap: [taps][C].
AlignedBuffer conv_by_tap(const AlignedBuffer& by_channel, std::int64_t taps);

struct GatedDeltaNet {
  Linear in_proj_qkv;     // [C, E]: q [Hk*Dk], k [Hk*Dk], v [Hv*Dv]
  Linear in_proj_z;       // [Hv*Dv, E]
  Linear in_proj_b;       // [Hv, E]
  Linear in_proj_a;       // [Hv, E]
  AlignedBuffer conv1d;   // [W][C], conv_by_tap()
  AlignedBuffer A_log;    // [Hv]
  AlignedBuffer dt_bias;  // [Hv]
  Norm norm;              // [Dv], the plain weight
  Linear out_proj;        // [E, Hv*Dv]
  L2Epsilon l2 = L2Epsilon::hf;

  // h += out(norm_gated(delta(norm(h)))) in place, from and to the rows' slots of recurrent layer `layer`.
  void forward(const Step& step, const RaggedBatch& batch, const RecurrentLayout& layout, std::int64_t layer,
               const Norm& input_norm, Tensor h) const;
  std::size_t scratch_bytes(const Device& device, std::int64_t tokens) const;
};

}  // namespace outrider
