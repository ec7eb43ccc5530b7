// What the configs of this room's decoders share (models.md 1.2).
#pragma once

#include <cstdint>
#include <string>

#include "layers/rope.h"
#include "weights/config.h"

namespace outrider {

enum class HeadWeight : std::uint8_t { tied, own };
// Whether the files hold lm_head.weight, which decides where tie_word_embeddings is absent (models.md 1.2.5).
enum class LmHead : std::uint8_t { absent, present };

struct DecoderConfig {
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
  RopeConfig rope;
  HeadWeight head = HeadWeight::tied;
};

// E, N, H and K. Error (data) for a key out of its range.
void read_width_and_heads(const ConfigReader& config, DecoderConfig& out);
// F, V and the epsilon of the norms.
void read_ffn_and_vocab(const ConfigReader& config, DecoderConfig& out);
HeadWeight read_head_weight(const ConfigReader& config, LmHead lm_head);

}  // namespace outrider
