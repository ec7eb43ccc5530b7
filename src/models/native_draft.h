// The multi-token-prediction head that a model brings along (models.md section 4, runtime.md section 3): its tensors
// and what it borrows of the model. models/ loads it with the trunk; speculate/mtp_module runs it.
#pragma once

#include <cstdint>
#include <string>

#include "layers/attention.h"
#include "layers/modules.h"
#include "layers/rope.h"
#include "layers/step.h"
#include "layers/swiglu.h"
#include "weights/checkpoint_facts.h"

namespace outrider {

// The 15 tensors, under their checkpoint names; norms are plain weights (any shift happened at load).
struct MtpWeights {
  Norm pre_fc_norm_embedding;  // [E]
  Norm pre_fc_norm_hidden;     // [E]
  Linear fc;                   // [E, 2E], the embedding half first
  // layers.0: one block of full attention.
  Norm input_layernorm;           // [E]
  Attention self_attn;            // gated: q_proj [2*H*D, E], per head D of query, then D of gate
  Norm post_attention_layernorm;  // [E]
  SwiGlu mlp;
  Norm norm;  // [E]; its output is the chained hidden and the input of the target's head
};

// Owned by its model, immutable after load.
struct NativeDraft {
  MtpWeights weights;
  RopeConfig rope;                             // of the head's attention: the target's
  const PackedMatrix* embed_tokens = nullptr;  // [V, E], the target's
  const PackedMatrix* head = nullptr;          // [V, E], the target's lm_head, or embed_tokens when tied
  const Norm* final_norm = nullptr;            // [E], the target's
  HiddenTap tap = HiddenTap::post_norm;
  // SHA-256 over canonical name, dtype, shape and bytes of the tensors, and the target's fingerprint (models.md 4.5).
  std::string identity;
};

// The target's hiddens [R,E] (of Model::forward) as this head was trained on: they themselves, or normed, in
// step.arena.
inline Tensor tapped(const Step& step, const NativeDraft& draft, Tensor hiddens) {
  if (draft.tap == HiddenTap::pre_norm) return hiddens;
  const Tensor normed = step.arena.tensor(hiddens.rows, hiddens.width);
  step.device.rms_norm(hiddens, draft.final_norm->data(), draft.final_norm->eps, normed);
  return normed;
}

}  // namespace outrider
