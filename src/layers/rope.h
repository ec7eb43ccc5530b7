// Rotary position embeddings (models.md 2.2): every kind of the table, read from the old (`rope_scaling`, `rope_theta`)
// and the new (`rope_parameters`) spelling.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layers/step.h"
#include "weights/config.h"

namespace outrider {

// `divisors`: inv_i = theta^(-2i/R) / divisor_i, how GGUF files store Llama 3's scaling (key rope_freq_divisors).
enum class RopeKind : std::uint8_t { standard, linear, dynamic, llama3, yarn, longrope, divisors };
enum class YarnRounding : std::uint8_t { whole_dims, none };

struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  RopePairs pairs = RopePairs::half_split;
  std::int64_t rotated = 0;  // R, even
  double theta = 1e4;
  double factor = 1;                                 // f
  double positions = 0;                              // P: max_position_embeddings
  double original_positions = 0;                     // P0
  double low_factor = 1, high_factor = 4;            // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  YarnRounding rounding = YarnRounding::whole_dims;  // yarn
  std::optional<double> attention_factor;            // yarn, longrope
  std::optional<double> mscale, mscale_all_dim;      // yarn
  std::vector<double> short_factors, long_factors;   // longrope; divisors: short_factors [R/2]
};

// Reads the RoPE keys of a config for heads of which `rotated` dims turn. Error (data): unknown type, values outside
// their range, arrays of another length than R/2.
RopeConfig read_rope(const ConfigReader& config, std::int64_t rotated);

// The longest context this scaling is meant for: max_position_embeddings, times the factor where that key holds the
// unscaled value (linear, dynamic; yarn counts from P0).
std::int64_t rope_context_tokens(const RopeConfig& config);

class Rope {
 public:
  explicit Rope(RopeConfig config);

  const RopeConfig& config() const { return config_; }
  std::int64_t half() const { return config_.rotated / 2; }
  // Frequencies of a row of `planned_tokens` = S, which decides for dynamic and longrope (S = 0 counts as short). For
  // dynamic beyond P they are computed into `computed` [R/2]; otherwise the result points into this object.
  RowFrequencies frequencies(std::int64_t planned_tokens, float* computed) const;
  // Rows of one class have the same frequencies: 0 for short ones, and for all where the length does not decide.
  std::int64_t length_class(std::int64_t planned_tokens) const;
  // cos and sin of the batch's tokens, in the step's arena.
  RopeAngles angles(const Step& step, const RaggedBatch& batch) const;
  // Arena bytes that angles() leaves taken.
  std::size_t scratch_bytes(std::int64_t tokens) const;

 private:
  RopeConfig config_;
  std::vector<float> inv_freq_;  // [R/2]
  std::vector<float> long_inv_freq_;
  float attention_factor_ = 1;  // m
};

}  // namespace outrider
