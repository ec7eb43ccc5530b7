// The specification of the gated delta net's kernels (numerics.md section 6, models.md 3.3), one loop per sentence.
#include <array>
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

// One column of S.
using Column = std::array<float, kMaxDeltaKeys>;

// Decay, read, write, output, in this order; gives delta.
float delta_step(Column& s, std::int64_t width, const float* q, const float* k, float g, float b, float* v) {
  float r = 0.0F;
  for (std::int64_t i = 0; i < width; ++i) {
    s[i] = g * s[i];
    r = std::fma(s[i], k[i], r);
  }
  const float delta = b * (*v - r);
  float y = 0.0F;
  for (std::int64_t i = 0; i < width; ++i) {
    s[i] = std::fma(k[i], delta, s[i]);
    y = std::fma(s[i], q[i], y);
  }
  *v = y;
  return delta;
}

// The state before the first token: what was stored, and the writes since.
void load_column(const DeltaSteps& w, std::int64_t column, Column& s) {
  for (std::int64_t i = 0; i < w.key_width; ++i) s[i] = w.from != nullptr ? w.from[i * w.state_stride + column] : 0.0F;
  for (std::int64_t t = 0; t < w.log.tokens; ++t) {
    const std::int64_t at = t * w.log.stride;
    for (std::int64_t i = 0; i < w.key_width; ++i)
      s[i] = std::fma(w.log.k[at + i], w.log.delta[at + column], w.log.g[at] * s[i]);
  }
}

void delta_steps(const DeltaSteps& w) {
  for (std::int64_t column = 0; column < w.columns; ++column) {
    Column s;
    load_column(w, column, s);
    auto store = w.stores.begin();
    for (std::int64_t t = 0; t < w.tokens; ++t) {
      const float delta = delta_step(s, w.key_width, w.q + t * w.token_stride, w.k + t * w.token_stride,
                                     w.g[t * w.gate_stride], w.b[t * w.gate_stride], w.v + t * w.token_stride + column);
      if (w.deltas != nullptr && t > 0) w.deltas[(t - 1) * w.delta_stride + column] = delta;
      if (store == w.stores.end() || store->tokens != t + 1) continue;
      float* const to = reinterpret_cast<float*>(store->slot + w.store_offset) + column;
      for (std::int64_t i = 0; i < w.key_width; ++i) to[i * w.state_stride] = s[i];
      ++store;
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
