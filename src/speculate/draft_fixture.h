// Test support: a draft head with random weights, quantized or dense, and rows of KV to run it on.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "device/packed_fixture.h"
#include "models/native_draft.h"

namespace outrider {

enum class FixtureWeights { dense, quantized };

struct DraftFixture {
  static constexpr std::int64_t kWidth = 64, kHeads = 4, kKvHeads = 2, kHeadWidth = 32, kRotated = 8, kFfn = 96,
                                kVocab = 131;

  NativeDraft draft;
  Embedding embedding;
  Linear lm_head;

  explicit DraftFixture(FixtureWeights kind, std::uint32_t seed = 1) : kind_(kind), random_(seed) {
    MtpWeights& w = draft.weights;
    w.pre_fc_norm_embedding = norm(kWidth);
    w.pre_fc_norm_hidden = norm(kWidth);
    w.fc = linear(kWidth, 2 * kWidth);
    w.input_layernorm = norm(kWidth);
    Attention& a = w.self_attn;
    a.q_proj = linear(2 * kHeads * kHeadWidth, kWidth);
    a.k_proj = linear(kKvHeads * kHeadWidth, kWidth);
    a.v_proj = linear(kKvHeads * kHeadWidth, kWidth);
    a.o_proj = linear(kWidth, kHeads * kHeadWidth);
    a.q_norm = norm(kHeadWidth);
    a.k_norm = norm(kHeadWidth);
    a.shape.heads = kHeads;
    a.shape.kv_heads = kKvHeads;
    a.shape.head_width = kHeadWidth;
    a.shape.rotary_half = kRotated / 2;
    a.shape.q_norm = a.q_norm.data();
    a.shape.k_norm = a.k_norm.data();
    a.shape.norm_eps = kEps;
    a.shape.gate = AttentionGate::sigmoid;
    w.post_attention_layernorm = norm(kWidth);
    w.mlp = {linear(kFfn, kWidth), linear(kFfn, kWidth), linear(kWidth, kFfn)};
    w.norm = norm(kWidth);
    draft.rope.rotated = kRotated;
    draft.rope.theta = 1e4;
    draft.rope.positions = 4096;
    embedding.weight = matrix(kVocab, kWidth);
    lm_head.weight = matrix(kVocab, kWidth);
    draft.embed_tokens = &embedding.weight.view;
    draft.head = &lm_head.weight.view;
    draft.identity = "fixture";
  }
  DraftFixture(const DraftFixture&) = delete;
  DraftFixture& operator=(const DraftFixture&) = delete;

 private:
  static constexpr float kEps = 1e-6F;
  PackedWeight matrix(std::int64_t n, std::int64_t k) {
    const auto seed = static_cast<std::uint32_t>(random_());
    PackedFixture made =
        kind_ == FixtureWeights::dense ? PackedFixture::dense(n, k, seed) : PackedFixture::affine(n, k, 4, 32, seed);
    PackedWeight weight;
    weight.view = made.view;
    weight.storage = std::move(made.storage);
    return weight;
  }
  Linear linear(std::int64_t n, std::int64_t k) { return {matrix(n, k), {}}; }
  Norm norm(std::int64_t width) {
    Norm made{AlignedBuffer(static_cast<std::size_t>(width) * sizeof(float), MemoryPart::weights), kEps};
    std::normal_distribution<float> normal(1, 0.1F);
    for (float& value : made.weight.as<float>()) value = normal(random_);
    return made;
  }

  FixtureWeights kind_;
  std::mt19937 random_;
};

}  // namespace outrider
