// The multi-token-prediction head of Qwen3.5's family (models.md section 4.1, runtime.md section 3), with the target's
// embedding and head:
//   u = fc([norm_emb(embed(token)) ; norm_hid(hidden)]), h = u + attention(u), out = norm(h + mlp(h)).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "models/native_draft.h"
#include "speculate/draft_module.h"
#include "speculate/draft_vocabulary.h"

namespace outrider {

// Which rows of the target's head proposals are taken from.
enum class HeadRows : std::uint8_t { all, vocabulary };

// Borrows the model's head, and the vocabulary if there is one; null: drafts over all of the target's rows. kv_type:
// f16, or f32 under --precision f32 (the KV codecs do not apply: models.md 4.4).
class MtpModule final : public DraftModule {
 public:
  MtpModule(const NativeDraft& draft, const DraftVocabulary* vocabulary, FloatType kv_type);

  // For the drafts to come; at first HeadRows::vocabulary where there is one.
  void use(HeadRows rows);

  std::int64_t width() const override { return draft_.embed_tokens->k; }
  KvLayout kv_layout() const override { return kv_; }
  const std::string& identity() const override { return draft_.identity; }
  std::int64_t head_columns() const override { return head().n; }
  std::span<const std::int32_t> head_ids() const override;

  Tensor forward(const Step& step, const RaggedBatch& batch, Tensor hiddens) override;
  void append_only(const Step& step, const RaggedBatch& batch, Tensor hiddens) override;
  void head(const Step& step, Tensor outputs, Tensor logits) override;
  std::size_t scratch_bytes(const Device& device, const DraftLimits& limits) const override;

 private:
  const PackedMatrix& head() const {
    return head_rows_ == HeadRows::vocabulary ? vocabulary_->head.view : *draft_.head;
  }
  void fuse(const Step& step, const RaggedBatch& batch, Tensor hiddens, Tensor out) const;
  RopeAngles angles(const Step& step, const RaggedBatch& batch) const;

  const NativeDraft& draft_;
  const DraftVocabulary* vocabulary_;
  HeadRows head_rows_;
  KvLayout kv_;
  Rope rope_;
};

}  // namespace outrider
