// What a GGUF file of architecture "llama" means in Hugging Face terms (models.md 1.11): tensor names, the row order of
// q and k, the equivalent config.json and generation_config.json. Other architectures are refused by name.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "weights/gguf.h"

namespace outrider {

struct GgufModelTensor {
  const GgufTensor* tensor = nullptr;
  // > 0: the rows of each of these heads are stored as interleaved pairs and must be un-permuted:
  // HF[h*D + s*D/2 + i] = GGUF[h*D + 2i + s].
  std::int64_t permuted_heads = 0;
};

// Row of the file that holds row `row` of the Hugging Face matrix of `rows` rows.
std::int64_t source_row(std::int64_t row, std::int64_t rows, std::int64_t permuted_heads);

struct GgufModel {
  // model_type "llama". `rope_freqs.weight` (the divisors of inv_freq, how llama.cpp stores Llama 3 scaling) becomes
  // the key "rope_freq_divisors": a list of R/2 numbers by which the default inv_freq is divided.
  nlohmann::json config;
  nlohmann::json generation_config;  // bos_token_id, eos_token_id (a list when an end-of-turn id exists)
  std::map<std::string, GgufModelTensor, std::less<>> tensors;  // by canonical name, with .weight or .bias
};

// Throws Error (data) naming file and key or tensor. The result borrows from `file`.
GgufModel read_gguf_model(const GgufFile& file);

}  // namespace outrider
