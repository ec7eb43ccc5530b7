// The device's products and attention alone, over random weights and KV rows that no cache holds, without a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "device/device.h"
#include "engine/machine.h"

namespace outrider {

// A weight format of numerics.md section 2, as a matrix without data.
struct WeightFormat {
  std::string name;  // "4 bit, groups of 64"
  PackedMatrix form;
};
// Every format, in a fixed order: affine by bits and groups, mxfp4, nvfp4, dense.
std::vector<WeightFormat> weight_formats();

// The shapes are MiniCPM5-1B's: its largest Linear and its attention.
class KernelBench {
 public:
  // Bytes it takes in all, beside the probe's buffer.
  static std::size_t bytes(int threads);
  // Borrows the device.
  explicit KernelBench(Device& device);

  // Fills the weights with random values of this format: as many matrices as the buffer holds. `view` for product().
  void load_format(const WeightFormat& format);
  // Seconds of coding `tokens` inputs and multiplying them with each of matrices(tokens) matrices.
  double product_seconds(std::int64_t tokens);
  std::int64_t matrices(std::int64_t tokens) const;
  std::uint64_t matrix_bytes() const { return matrix_.bytes(); }
  static constexpr std::int64_t kOutputs = 4608, kInputs = 1536;

  // Seconds of attention in attention_layers(tokens) layers: `tokens` queries of one row behind `context` keys.
  double attention_seconds(std::int64_t tokens, std::int64_t context);
  static std::int64_t attention_layers(std::int64_t tokens);
  static std::uint64_t kv_bytes_of(std::int64_t tokens, std::int64_t context);       // read by such a run
  static std::int64_t attention_macs_of(std::int64_t tokens, std::int64_t context);  // of such a run
  static constexpr std::int64_t kMostTokens = 512, kMostContext = 8192;

 private:
  Device& device_;
  AlignedBuffer weights_, kv_, inputs_, outputs_;
  Arena arena_;
  PackedMatrix matrix_;
  std::vector<std::byte*> blocks_;
};

}  // namespace outrider
