#include "models/decoder_config.h"

namespace outrider {

void read_width_and_heads(const ConfigReader& config, DecoderConfig& out) {
  out.width = config.dimension("hidden_size");
  out.layers = config.integer("num_hidden_layers", 1, 4096);
  out.heads = config.dimension("num_attention_heads");
  out.kv_heads = config.dimension("num_key_value_heads", out.heads);
  if (out.heads % out.kv_heads != 0)
    throw config.refuse("num_key_value_heads", fmt::format("a divisor of num_attention_heads = {}", out.heads));
}

void read_ffn_and_vocab(const ConfigReader& config, DecoderConfig& out) {
  out.ffn = config.dimension("intermediate_size");
  out.vocab = config.dimension("vocab_size");
  out.norm_eps = static_cast<float>(config.number("rms_norm_eps", 0, 1));
}

HeadWeight read_head_weight(const ConfigReader& config, LmHead lm_head) {
  return config.flag("tie_word_embeddings", lm_head == LmHead::absent) ? HeadWeight::tied : HeadWeight::own;
}

}  // namespace outrider
