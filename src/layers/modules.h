// The modules that own weights: Linear, Norm, Embedding. Immutable after load; planned from headers they have shapes
// and no data, and serve the memory plan alone.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "weights/model_source.h"

namespace outrider {

// y = x*W^T (+ bias): weight [n, k] dense or quantized, optional additive bias [n] f32. The end of the operation has
// the order of numerics.md section 2: bias, then the adapters of the rows, then the residual.
struct Linear {
  PackedWeight weight;
  AlignedBuffer bias;  // empty: none

  std::int64_t n() const { return weight.view.n; }
  std::int64_t k() const { return weight.view.k; }
  // This Linear as a part of a fused operation that writes out [T, n]; `residual` [T, n] is borrowed until it returns.
  LinearPart part(Tensor out, const Tensor* residual = nullptr) const {
    return {&weight.view, bias.size() > 0 ? bias.as<float>().data() : nullptr, residual, out};
  }
};

// rms(x; weight, eps), numerics.md section 4. weight [E] f32.
struct Norm {
  AlignedBuffer weight;
  float eps = 0;
  const float* data() const { return weight.size() > 0 ? weight.as<float>().data() : nullptr; }
};

// Rows [V, E]; a tied head multiplies by the same packed matrix.
struct Embedding {
  PackedWeight weight;
};

}  // namespace outrider
