// The "quantization" object of config.json (models.md 1.6): parameters by default and per module. The tensors decide
// whether a module is quantized (it has .scales); this map only says how.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

enum class QuantizationMode : std::uint8_t { affine, mxfp4, nvfp4, mxfp8 };
std::string_view name_of(QuantizationMode mode);

struct QuantizationParameters {
  QuantizationMode mode = QuantizationMode::affine;
  int bits = 4;
  int group = 64;
  bool operator==(const QuantizationParameters&) const = default;
};

// affine 64/4, mxfp4 32/4, nvfp4 16/4, mxfp8 32/8.
QuantizationParameters default_parameters(QuantizationMode mode);

class QuantizationMap {
 public:
  // Reads "quantization", else "quantization_config" without quant_method, in the root or in text_config. Override keys
  // are made canonical (checkpoint.h) and get `prefix` where they lack it, as the tensors of a side-car do. A
  // quant_method (FP8, AWQ, GPTQ, ...) and quantize_activations: Error (data).
  static QuantizationMap from_config(const nlohmann::json& config, std::string_view origin,
                                     std::string_view prefix = {});

  // How a module that has .scales is stored. Error (data) naming the path when the map says false or does not exist.
  QuantizationParameters parameters(std::string_view path) const;
  // Overrides with parameters (or true), for the log line about those whose module has no scales.
  const std::map<std::string, std::optional<QuantizationParameters>>& overrides() const { return overrides_; }
  const std::optional<QuantizationParameters>& defaults() const { return defaults_; }

 private:
  std::string origin_;
  std::optional<QuantizationParameters> defaults_;
  std::optional<QuantizationParameters> head_defaults_;  // "mtplx_mtp_quantization": of modules named mtp.*
  std::map<std::string, std::optional<QuantizationParameters>> overrides_;  // nullopt: false
};

}  // namespace outrider
