// Config of the Qwen3.5 family (models.md 1.2.3): gated delta net and gated attention, dense sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/decoder_config.h"
#include "models/model.h"
#include "weights/qwen3_5_layout.h"

namespace outrider {

// `rope` is of the first R dims of a head.
struct Qwen35Config : DecoderConfig {
  DeltaNetDims delta;
  std::vector<CacheKind> mixers;  // [N]: full or recurrent
};

// Error (data) for every refused value of models.md 1.2.6 and every failed check of 1.2.7.
Qwen35Config read_qwen3_5_config(const ConfigReader& config, const std::string& model_type, LmHead lm_head);

}  // namespace outrider
