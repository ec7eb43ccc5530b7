// Config of the Qwen3.5 family (models.md 1.2.3): gated delta net and gated attention, dense sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/rope.h"
#include "models/llama_config.h"
#include "models/model.h"
#include "weights/qwen3_5_layout.h"

namespace outrider {

struct Qwen35Config {
  std::string architecture;     // model_type
  std::int64_t width = 0;       // E
  std::int64_t layers = 0;      // N
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // K
  std::int64_t head_width = 0;  // D
  std::int64_t ffn = 0;         // F
  std::int64_t vocab = 0;       // V
  std::int64_t context_tokens = 0;
  float norm_eps = 0;
  RopeConfig rope;  // of the first R dims of a head
  DeltaNetDims delta;
  std::vector<CacheKind> mixers;  // [N]: full or recurrent
  HeadWeight head = HeadWeight::tied;
};

// Error (data) for every refused value of models.md 1.2.6 and every failed check of 1.2.7. `lm_head` as for llama.
Qwen35Config read_qwen3_5_config(const ConfigReader& config, const std::string& model_type, LmHead lm_head);

}  // namespace outrider
