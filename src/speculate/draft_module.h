// What the rows of a draft head need of it (runtime.md section 3): one block with a KV of its own that predicts the
// token after next from (embedding of the next token, hidden of the last position). MtpModule is the real one.
//
// Draft row p, the pair (token p+1, hidden p), is stored at KV position p+1 and turned by RoPE position p: position s
// of the cache then depends on tokens <= s alone, and its blocks are keyed and shared like the target's. Position 0
// stays zeroed and is not seen (BatchRow::first_key = 1).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "layers/step.h"

namespace outrider {

// The limits scratch is sized from.
struct DraftLimits {
  std::int64_t rows = 32;           // rows of one call, and of logits at once
  std::int64_t depth = 4;           // K: proposals of one row in one round
  std::int64_t chunk_tokens = 512;  // tokens of one pass, at least depth + 1
  std::int64_t context_tokens = 0;  // longest row
};

class DraftModule {
 public:
  virtual ~DraftModule() = default;
  virtual std::int64_t width() const = 0;           // E
  virtual KvLayout kv_layout() const = 0;           // one layer
  virtual const std::string& identity() const = 0;  // of its tensors and its target: checkpoints carry it
  virtual std::int64_t head_columns() const = 0;    // of logits
  // The token of each column, ascending; empty: column v is token v. Others are never proposed (a draft vocabulary).
  virtual std::span<const std::int32_t> head_ids() const = 0;

  // [T,E] in step.arena: outputs for pairs (batch.tokens[i], hiddens row i), each both the chained hidden of the next
  // pair and the head's input. Stores one KV position per token, at the batch's positions.
  virtual Tensor forward(const Step& step, const RaggedBatch& batch, Tensor hiddens) = 0;
  // The same bytes of K and V, and nothing else.
  virtual void append_only(const Step& step, const RaggedBatch& batch, Tensor hiddens) = 0;
  // logits [R, columns] of outputs [R,E]. step.faults has one entry per row.
  virtual void head(const Step& step, Tensor outputs, Tensor logits) = 0;

  // Arena bytes of the largest pass within the limits: forward() or append_only() of chunk_tokens; and of head() with
  // its logits.
  virtual std::size_t scratch_bytes(const Device& device, const DraftLimits& limits) const = 0;
};

}  // namespace outrider
