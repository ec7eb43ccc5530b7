#include "layers/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "kernels/math.h"

namespace outrider {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;
constexpr double kMaxDivisor = 1e12;      // of one frequency; large ones stop a pair from turning at all
constexpr double kMinTheta = 1.0 + 1e-6;  // theta = 1 has no frequencies, and yarn divides by its logarithm

// beta_i = theta^(-2i/R).
double base_frequency(double theta, std::int64_t i, std::int64_t rotated) {
  return pow64(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated));
}

double llama3_frequency(const RopeConfig& c, double beta) {
  const double wavelength = 2 * std::numbers::pi / beta;
  if (wavelength < c.original_positions / c.high_factor) return beta;
  if (wavelength > c.original_positions / c.low_factor) return beta / c.factor;
  const double s = (c.original_positions / wavelength - c.low_factor) / (c.high_factor - c.low_factor);
  return (1 - s) * beta / c.factor + s * beta;
}

// The dim at which a wave turns `turns` times over the original context.
double yarn_dim(const RopeConfig& c, double turns) {
  return static_cast<double>(c.rotated) * log64(c.original_positions / (2 * std::numbers::pi * turns)) /
         (2 * log64(c.theta));
}

// Share of the interpolated frequency at dim i.
double yarn_ramp(const RopeConfig& c, std::int64_t i) {
  double low = yarn_dim(c, c.beta_fast), high = yarn_dim(c, c.beta_slow);
  if (c.rounding == YarnRounding::whole_dims) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(c.rotated - 1));
  if (low == high) high += 0.001;
  return std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

double yarn_scale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log64(factor) + 1; }

double attention_factor(const RopeConfig& c) {
  if (c.kind != RopeKind::yarn && c.kind != RopeKind::longrope) return 1;
  if (c.attention_factor) return *c.attention_factor;
  if (c.kind == RopeKind::longrope)
    return c.factor <= 1 ? 1 : std::sqrt(1 + log64(c.factor) / log64(c.original_positions));
  if (c.mscale && c.mscale_all_dim && *c.mscale != 0 && *c.mscale_all_dim != 0)
    return yarn_scale(c.factor, *c.mscale) / yarn_scale(c.factor, *c.mscale_all_dim);
  return yarn_scale(c.factor, 1);
}

double frequency(const RopeConfig& c, std::int64_t i, const std::vector<double>& divisors) {
  const double beta = base_frequency(c.theta, i, c.rotated);
  switch (c.kind) {
    case RopeKind::standard:
    case RopeKind::dynamic:
      return beta;
    case RopeKind::linear:
      return beta / c.factor;
    case RopeKind::llama3:
      return llama3_frequency(c, beta);
    case RopeKind::yarn: {
      const double t = yarn_ramp(c, i);
      return beta * (1 - t) + beta / c.factor * t;
    }
    case RopeKind::longrope:
    case RopeKind::divisors:
      return beta / divisors[static_cast<std::size_t>(i)];
  }
  OUTRIDER_CHECK(false, "rope kind {}", static_cast<int>(c.kind));
  return 0;
}

std::vector<float> frequencies_of(const RopeConfig& c, const std::vector<double>& divisors) {
  std::vector<float> inv_freq(static_cast<std::size_t>(c.rotated / 2));
  for (std::size_t i = 0; i < inv_freq.size(); ++i)
    inv_freq[i] = static_cast<float>(frequency(c, static_cast<std::int64_t>(i), divisors));
  return inv_freq;
}

std::vector<double> divisors_of(const ConfigReader& from, std::string_view key, std::int64_t rotated) {
  std::vector<double> values = from.numbers(key);
  const auto usable = [](double v) { return v > 0 && v <= kMaxDivisor; };
  if (static_cast<std::int64_t>(values.size()) != rotated / 2 || !std::all_of(values.begin(), values.end(), usable))
    throw from.refuse(key, fmt::format("{} numbers > 0, half of the {} rotated dims", rotated / 2, rotated));
  return values;
}

std::optional<double> optional_number(const ConfigReader& from, std::string_view key) {
  if (!from.has(key)) return std::nullopt;
  return from.number(key, -kMaxFactor, kMaxFactor);
}

std::optional<RopeKind> kind_of(std::string_view type) {
  if (type == "default" || type == "none" || type == "mrope") return RopeKind::standard;
  if (type == "linear") return RopeKind::linear;
  if (type == "dynamic") return RopeKind::dynamic;
  if (type == "llama3") return RopeKind::llama3;
  if (type == "yarn") return RopeKind::yarn;
  if (type == "longrope" || type == "su") return RopeKind::longrope;
  return std::nullopt;
}

void read_yarn(const ConfigReader& scaling, RopeConfig& rope) {
  rope.beta_fast = scaling.number("beta_fast", 1e-3, kMaxFactor, 32);
  rope.beta_slow = scaling.number("beta_slow", 1e-3, kMaxFactor, 1);
  rope.rounding = scaling.flag("truncate", true) ? YarnRounding::whole_dims : YarnRounding::none;
  rope.mscale = optional_number(scaling, "mscale");
  rope.mscale_all_dim = optional_number(scaling, "mscale_all_dim");
}

// The values of one kind, from its object; keys it lacks may stand in the config itself.
void read_scaling(const ConfigReader& config, const ConfigReader& scaling, RopeConfig& rope) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const ConfigReader& original = scaling.has(kOriginal) ? scaling : config;
  const bool has_original = original.has(kOriginal);
  rope.original_positions = has_original ? original.number(kOriginal, 1, 1e9) : rope.positions;
  switch (rope.kind) {
    case RopeKind::standard:
    case RopeKind::divisors:
      return;
    case RopeKind::dynamic:
      // theta' has the exponent R/(R-2).
      if (rope.rotated <= 2) throw config.refuse("head_dim", "more than 2 rotated dims with rope type dynamic");
      [[fallthrough]];
    case RopeKind::linear:
      rope.factor = scaling.number("factor", 1e-3, kMaxFactor);
      return;
    case RopeKind::llama3:
      rope.factor = scaling.number("factor", 1e-3, kMaxFactor);
      rope.low_factor = scaling.number("low_freq_factor", 1e-3, kMaxFactor);
      rope.high_factor = scaling.number("high_freq_factor", 1e-3, kMaxFactor);
      if (rope.high_factor <= rope.low_factor) throw scaling.refuse("high_freq_factor", "more than low_freq_factor");
      if (!has_original) rope.original_positions = scaling.number(kOriginal, 1, 1e9);  // required: names the key
      return;
    case RopeKind::yarn:
      rope.factor = scaling.number("factor", 1e-3, kMaxFactor);
      rope.attention_factor = optional_number(scaling, "attention_factor");
      read_yarn(scaling, rope);
      return;
    case RopeKind::longrope:
      rope.factor =
          has_original ? rope.positions / rope.original_positions : scaling.number("factor", 1e-3, kMaxFactor);
      if (rope.original_positions < 2) throw scaling.refuse(kOriginal, "at least 2");
      rope.attention_factor = optional_number(scaling, "attention_factor");
      rope.short_factors = divisors_of(scaling, "short_factor", rope.rotated);
      rope.long_factors = divisors_of(scaling, "long_factor", rope.rotated);
      return;
  }
}

}  // namespace

RopeConfig read_rope(const ConfigReader& config, std::int64_t rotated) {
  RopeConfig rope;
  rope.rotated = rotated;
  rope.positions = config.number("max_position_embeddings", 1, 1e9);
  const bool interleaved = config.flag("rope_traditional", false) || config.flag("rope_interleaved", false);
  rope.pairs = interleaved ? RopePairs::interleaved : RopePairs::half_split;
  rope.theta = config.number("rope_theta", kMinTheta, kMaxTheta, 1e4);
  if (config.has("rope_freq_divisors")) {
    rope.kind = RopeKind::divisors;
    rope.short_factors = divisors_of(config, "rope_freq_divisors", rotated);
  }
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.has(key)) return rope;
  const ConfigReader scaling = config.object(key);
  if (scaling.has("full_attention") || scaling.has("sliding_attention"))
    throw config.refuse(key, "one set of values for all layers");
  rope.theta = scaling.number("rope_theta", kMinTheta, kMaxTheta, rope.theta);
  const char* type_key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::optional<RopeKind> kind = kind_of(scaling.text(type_key, "default"));
  if (!kind) throw scaling.refuse(type_key, "default, linear, dynamic, llama3, yarn, longrope, mrope");
  if (rope.kind == RopeKind::divisors && *kind != RopeKind::standard)
    throw scaling.refuse(type_key, "default beside rope_freq_divisors");
  if (rope.kind != RopeKind::divisors) rope.kind = *kind;
  read_scaling(config, scaling, rope);
  return rope;
}

std::int64_t rope_context_tokens(const RopeConfig& config) {
  double tokens = config.positions;
  if (config.kind == RopeKind::linear || config.kind == RopeKind::dynamic) tokens *= std::max(1.0, config.factor);
  if (config.kind == RopeKind::yarn) tokens = std::max(tokens, config.original_positions * config.factor);
  if (config.kind == RopeKind::longrope) tokens = std::max(tokens, config.original_positions * config.factor);
  return static_cast<std::int64_t>(std::floor(tokens));
}

Rope::Rope(RopeConfig config) : config_(std::move(config)) {
  const bool fits = config_.rotated >= 2 && config_.rotated % 2 == 0;
  OUTRIDER_CHECK(fits, "{} rotated dims", config_.rotated);
  inv_freq_ = frequencies_of(config_, config_.short_factors);
  if (config_.kind == RopeKind::longrope) long_inv_freq_ = frequencies_of(config_, config_.long_factors);
  attention_factor_ = static_cast<float>(attention_factor(config_));
}

std::int64_t Rope::length_class(std::int64_t planned_tokens) const {
  const auto length = static_cast<double>(planned_tokens);
  if (config_.kind == RopeKind::longrope) return length > config_.original_positions ? 1 : 0;
  return config_.kind == RopeKind::dynamic && length > config_.positions ? planned_tokens : 0;
}

RowFrequencies Rope::frequencies(std::int64_t planned_tokens, float* computed) const {
  const auto length = static_cast<double>(planned_tokens);
  if (config_.kind == RopeKind::longrope && length > config_.original_positions)
    return {long_inv_freq_.data(), attention_factor_};
  if (config_.kind != RopeKind::dynamic || length <= config_.positions) return {inv_freq_.data(), attention_factor_};
  const auto rotated = static_cast<double>(config_.rotated);
  const double stretch = config_.factor * length / config_.positions - (config_.factor - 1);
  const double theta = config_.theta * pow64(stretch, rotated / (rotated - 2));
  for (std::int64_t i = 0; i < half(); ++i) computed[i] = static_cast<float>(base_frequency(theta, i, config_.rotated));
  return {computed, attention_factor_};
}

RopeAngles Rope::angles(const Step& step, const RaggedBatch& batch) const {
  const auto rows = static_cast<std::int64_t>(batch.rows.size());
  const RopeAngles angles = {step.arena.tensor(batch.size(), half()), step.arena.tensor(batch.size(), half())};
  Arena::Scope scope(step.arena);
  const Tensor computed = step.arena.tensor(rows, half());
  auto* const chosen = step.arena.take_of<RowFrequencies>(rows);
  for (std::int64_t r = 0; r < rows; ++r)
    chosen[r] = frequencies(batch.rows[static_cast<std::size_t>(r)].planned_tokens, computed.row(r));
  step.device.rope_angles(batch, {chosen, static_cast<std::size_t>(rows)}, angles);
  return angles;
}

std::size_t Rope::scratch_bytes(std::int64_t tokens) const { return 2 * tensor_bytes(tokens, half()); }

}  // namespace outrider
