// Test support: the gated delta net between its projections as a naive program in double, straight from models.md 3.3,
// and the mistakes of models.md 6.1 that a test must be able to see.
#pragma once

#include <cmath>
#include <vector>

#include "device/packed_fixture.h"

namespace outrider {

enum class DeltaMistake {
  none,
  key_heads_tiled,
  no_dt_bias,
  no_silu_after_conv,
  q_unscaled,
  gate_before_norm,
  read_before_decay,
  output_before_write,
  taps_reversed,
  norm_plus_one
};
inline constexpr DeltaMistake kDeltaMistakes[] = {
    DeltaMistake::key_heads_tiled,     DeltaMistake::no_dt_bias,       DeltaMistake::no_silu_after_conv,
    DeltaMistake::q_unscaled,          DeltaMistake::gate_before_norm, DeltaMistake::read_before_decay,
    DeltaMistake::output_before_write, DeltaMistake::taps_reversed,    DeltaMistake::norm_plus_one};

// The small tensors of one layer.
struct DeltaParameters {
  Values conv, a_log, dt_bias, norm;  // [C][W] as in a checkpoint, [Hv], [Hv], [Dv]
  float l2_eps = 1e-6F;

  static DeltaParameters random(const RecurrentLayout& layout, std::uint32_t seed) {
    DeltaParameters out = {
        Values::random(layout.channels(), layout.taps, seed), Values::random(1, layout.value_heads, seed + 1),
        Values::random(1, layout.value_heads, seed + 2), Values::random(1, layout.value_width, seed + 3)};
    for (float& value : out.conv.data) value *= 0.5F;
    return out;
  }
  // As DeltaShape wants it: [W][C].
  Values conv_by_tap() const {
    Values out(conv.width, conv.rows);
    for (std::int64_t c = 0; c < conv.rows; ++c)
      for (std::int64_t j = 0; j < conv.width; ++j)
        out.row(j)[c] = conv.data[static_cast<std::size_t>(c * conv.width + j)];
    return out;
  }
};

// One row and layer: its state, and what every new token adds. Vectors are indexed as the slots are.
struct DeltaReference {
  // What the delta rule sees of a token: q, k [Hk*Dk], v [Hv*Dv], ln g and b [Hv].
  struct Token {
    std::vector<double> q, k, v, ln_g, b;
  };

  DeltaReference(const RecurrentLayout& layout, const DeltaParameters& parameters,
                 DeltaMistake mistake = DeltaMistake::none)
      : layout(layout),
        parameters(parameters),
        mistake(mistake),
        state(static_cast<std::size_t>(layout.state_floats())),
        window(static_cast<std::size_t>((layout.taps - 1) * layout.channels())) {}

  const RecurrentLayout& layout;
  const DeltaParameters& parameters;
  DeltaMistake mistake;
  std::vector<double> state, window;  // S [Hv][Dk][Dv], raw inputs [W-1][C]

  static double silu(double x) { return x / (1 + std::exp(-x)); }
  std::int64_t key_head(std::int64_t head) const {
    return mistake == DeltaMistake::key_heads_tiled ? head % layout.key_heads
                                                    : head / (layout.value_heads / layout.key_heads);
  }

  // Steps 1 to 3: p [C], a, b [Hv] raw. Moves the window.
  Token form(const double* p, const double* a, const double* b) {
    const std::int64_t channels = layout.channels(), keys = layout.key_heads * layout.key_width;
    window.insert(window.end(), p, p + channels);
    std::vector<double> u(static_cast<std::size_t>(channels));
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::int64_t j = 0; j < layout.taps; ++j) {
        const std::int64_t tap = mistake == DeltaMistake::taps_reversed ? layout.taps - 1 - j : j;
        sum += static_cast<double>(parameters.conv.data[static_cast<std::size_t>(c * layout.taps + tap)]) *
               window[static_cast<std::size_t>(j * channels + c)];
      }
      u[static_cast<std::size_t>(c)] = mistake == DeltaMistake::no_silu_after_conv ? sum : silu(sum);
    }
    window.erase(window.begin(), window.begin() + channels);
    Token token;
    token.q.assign(u.begin(), u.begin() + keys);
    token.k.assign(u.begin() + keys, u.begin() + 2 * keys);
    token.v.assign(u.begin() + 2 * keys, u.end());
    const double scale = mistake == DeltaMistake::q_unscaled ? 1 : 1 / std::sqrt(static_cast<double>(layout.key_width));
    normalize(token.q, scale);
    normalize(token.k, 1);
    for (std::int64_t h = 0; h < layout.value_heads; ++h) {
      const auto at = static_cast<std::size_t>(h);
      const double bias = mistake == DeltaMistake::no_dt_bias ? 0 : static_cast<double>(parameters.dt_bias.data[at]);
      const double x = a[h] + bias;
      token.ln_g.push_back(-std::exp(static_cast<double>(parameters.a_log.data[at])) *
                           (x > 20 ? x : std::log1p(std::exp(x))));
      token.b.push_back(1 / (1 + std::exp(-b[h])));
    }
    return token;
  }

  // Step 4: y [Hv*Dv].
  std::vector<double> step(const Token& token) {
    std::vector<double> y(token.v.size());
    const std::int64_t keys = layout.key_width, values = layout.value_width;
    for (std::int64_t h = 0; h < layout.value_heads; ++h)
      for (std::int64_t v = 0; v < values; ++v) {
        const double* q = token.q.data() + key_head(h) * keys;
        const double* k = token.k.data() + key_head(h) * keys;
        const auto at = static_cast<std::size_t>(h);
        const auto s = [&](std::int64_t i) -> double& {
          return state[static_cast<std::size_t>((h * keys + i) * values + v)];
        };
        const double g = std::exp(token.ln_g[at]);
        double before = 0, read = 0, output = 0;
        for (std::int64_t i = 0; i < keys; ++i) before += s(i) * k[i];
        for (std::int64_t i = 0; i < keys; ++i) s(i) *= g;
        for (std::int64_t i = 0; i < keys; ++i) read += s(i) * k[i];
        for (std::int64_t i = 0; i < keys; ++i) output += s(i) * q[i];
        if (mistake == DeltaMistake::read_before_decay) read = before;
        double& out = y[static_cast<std::size_t>(h * values + v)];
        const double delta = token.b[at] * (token.v[static_cast<std::size_t>(h * values + v)] - read);
        for (std::int64_t i = 0; i < keys; ++i) s(i) += delta * k[i];
        for (std::int64_t i = 0; i < keys; ++i) out += s(i) * q[i];
        if (mistake == DeltaMistake::output_before_write) out = output;
      }
    return y;
  }

  // Step 5: o [Hv*Dv] from y and z.
  std::vector<double> gate(std::vector<double> y, const double* z, double eps) const {
    const std::int64_t width = layout.value_width;
    for (std::int64_t h = 0; h < layout.value_heads; ++h) {
      double* head = y.data() + h * width;
      const auto gate_head = [&] {
        for (std::int64_t v = 0; v < width; ++v) head[v] *= silu(z[h * width + v]);
      };
      if (mistake == DeltaMistake::gate_before_norm) gate_head();
      double sum = 0;
      for (std::int64_t v = 0; v < width; ++v) sum += head[v] * head[v];
      const double r = 1 / std::sqrt(sum / static_cast<double>(width) + eps);
      for (std::int64_t v = 0; v < width; ++v)
        head[v] *= r * (static_cast<double>(parameters.norm.data[static_cast<std::size_t>(v)]) +
                        (mistake == DeltaMistake::norm_plus_one ? 1 : 0));
      if (mistake != DeltaMistake::gate_before_norm) gate_head();
    }
    return y;
  }

 private:
  void normalize(std::vector<double>& heads, double scale) const {
    const auto width = static_cast<std::size_t>(layout.key_width);
    for (std::size_t first = 0; first < heads.size(); first += width) {
      double sum = 0;
      for (std::size_t i = first; i < first + width; ++i) sum += heads[i] * heads[i];
      for (std::size_t i = first; i < first + width; ++i)
        heads[i] *= scale / std::sqrt(sum + static_cast<double>(parameters.l2_eps));
    }
  }
};

// Slots in plain memory, filled with NaN that would poison any sum that read what nobody wrote.
struct SlotsFixture {
  std::vector<AlignedBuffer> storage;

  SlotsFixture(const RecurrentLayout& layout, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      storage.emplace_back(layout.slot_bytes(), MemoryPart::recurrent);
      std::memset(storage.back().data(), 0xff, layout.slot_bytes());
    }
  }
  std::byte* slot(std::int64_t i) { return storage[static_cast<std::size_t>(i)].data(); }
};

}  // namespace outrider
