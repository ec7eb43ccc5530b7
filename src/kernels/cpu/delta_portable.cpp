// The specification of the gated delta net's kernels (numerics.md section 6, models.md 3.3), one loop per sentence.
#include <cmath>

#include "kernels/cpu/portable_lanes.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/math.h"

namespace outrider {
namespace {

// A row of zeros adds fma(w, 0, c) = c: it is skipped.
void conv_silu(const float* const* rows, const float* w, std::int64_t w_stride, std::int64_t taps, std::int64_t n,
               float* u) {
  for (std::int64_t i = 0; i < n; ++i) {
    float c = 0.0F;
    for (std::int64_t j = 0; j < taps; ++j) {
      if (rows[j] != nullptr) c = std::fma(w[j * w_stride + i], rows[j][i], c);
    }
    u[i] = silu32(c);
  }
}

void l2_norm(const float* x, std::int64_t width, float eps, float* y) {
  const float r = 1.0F / std::sqrt(sum_of_squares(x, width) + eps);
  for (std::int64_t i = 0; i < width; ++i) y[i] = x[i] * r;
}

void delta_gates(const float* a_log, const float* dt_bias, std::int64_t heads, float* a, float* b) {
  for (std::int64_t h = 0; h < heads; ++h) {
    a[h] = exp32(-exp32(a_log[h]) * softplus32(a[h] + dt_bias[h]));
    b[h] = sigmoid32(b[h]);
  }
}

// One column: decay, read, write, output, in this order.
void delta_step(const float* from, float* to, std::int64_t stride, std::int64_t width, const float* q, const float* k,
                float g, float b, float* v) {
  float r = 0.0F;
  for (std::int64_t i = 0; i < width; ++i) {
    to[i * stride] = g * (from != nullptr ? from[i * stride] : 0.0F);
    r = std::fma(to[i * stride], k[i], r);
  }
  const float delta = b * (*v - r);
  float y = 0.0F;
  for (std::int64_t i = 0; i < width; ++i) {
    to[i * stride] = std::fma(k[i], delta, to[i * stride]);
    y = std::fma(to[i * stride], q[i], y);
  }
  *v = y;
}

void delta_steps(const DeltaSteps& w) {
  for (std::int64_t column = 0; column < w.columns; ++column) {
    for (std::int64_t t = 0; t < w.tokens; ++t) {
      const float* from = t > 0 ? w.to : w.from;
      delta_step(from != nullptr ? from + column : nullptr, w.to + column, w.state_stride, w.key_width,
                 w.q + t * w.token_stride, w.k + t * w.token_stride, w.g[t * w.gate_stride], w.b[t * w.gate_stride],
                 w.v + t * w.token_stride + column);
    }
  }
}

void gated_norm(const float* y, const float* z, const float* w, std::int64_t width, float eps, float* x) {
  const float r = rms_factor(y, width, eps);
  for (std::int64_t i = 0; i < width; ++i) x[i] = ((y[i] * r) * w[i]) * silu32(z[i]);
}

}  // namespace

void fill_delta_kernels_portable(KernelTable& table) {
  table.conv_silu = conv_silu;
  table.l2_norm = l2_norm;
  table.delta_gates = delta_gates;
  table.delta_steps = delta_steps;
  table.gated_norm = gated_norm;
}

}  // namespace outrider
