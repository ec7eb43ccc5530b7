// The specification of the vector kernels, one loop per sentence of numerics.md. Readable first: speed is the business
// of the other tables, which give these bytes.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/portable_lanes.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/half.h"
#include "kernels/math.h"

namespace outrider {
namespace {

constexpr std::int64_t kVocabularyTile = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargestHalf = 65504.0F;

// The larger of a running maximum and x; a NaN x changes nothing, so the order of the values does not matter.
float larger(float running, float x) { return x > running ? x : running; }

// A maximum of zeros is +0, whichever zero came first.
float positive_zero(float x) { return x + 0.0F; }

void rms_norm(const float* x, const float* w, std::int64_t width, float eps, float* y) {
  const float r = rms_factor(x, width, eps);
  for (std::int64_t i = 0; i < width; ++i) y[i] = (x[i] * r) * w[i];
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = silu32(gate[i]) * up[i];
}

void sigmoid_mul(const float* gate, const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * sigmoid32(gate[i]);
}

void add(const float* x, const float* y, std::int64_t n, float* z) {
  for (std::int64_t i = 0; i < n; ++i) z[i] = x[i] + y[i];
}

void scale(const float* x, float factor, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

void rope_angles(std::int64_t position, const float* inv_freq, std::int64_t half, float m, float* cos, float* sin) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    double sin_exact, cos_exact;
    sincos64(static_cast<double>(angle), &sin_exact, &cos_exact);
    cos[i] = static_cast<float>(cos_exact);
    sin[i] = static_cast<float>(sin_exact);
    if (m != 1.0F) {
      cos[i] *= m;
      sin[i] *= m;
    }
  }
}

void rope_rotate(float* x, const float* cos, const float* sin, std::int64_t half, RopePairs pairs) {
  for (std::int64_t i = 0; i < half; ++i) {
    float& first = pairs == RopePairs::half_split ? x[i] : x[2 * i];
    float& second = pairs == RopePairs::half_split ? x[i + half] : x[2 * i + 1];
    const float a = first;
    const float b = second;
    first = std::fma(a, cos[i], -(b * sin[i]));
    second = std::fma(b, cos[i], a * sin[i]);
  }
}

// Element `index` of a block, which holds f16 or f32.
float load(const std::byte* block, FloatType type, std::int64_t index) {
  if (type == FloatType::f32) {
    float value;
    std::memcpy(&value, block + index * 4, 4);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, block + index * 2, 2);
  return f32_from_f16(half);
}

struct StoredHalf {
  std::uint16_t bits;
  bool clamped;
};

StoredHalf clamped_half(float x) {
  const std::uint16_t half = f16_from_f32(x);
  if ((half & 0x7fffU) != 0x7c00U) return {half, false};
  const auto largest = static_cast<std::uint16_t>((half & 0x8000U) | f16_from_f32(kLargestHalf));
  return {largest, std::isfinite(x)};  // an infinity is a fault, not a clamp
}

std::int64_t store_kv(const float* k, const float* v, std::int64_t head_width, std::int64_t j, FloatType kv_type,
                      std::byte* k_block, std::byte* v_block, std::uint32_t* fault) {
  std::int64_t clamps = 0;
  const auto store = [&](float x, std::byte* block, std::int64_t index) {
    if (!std::isfinite(x)) *fault |= kFaultNonFinite;
    if (kv_type == FloatType::f32) {
      std::memcpy(block + index * 4, &x, 4);
      return;
    }
    const StoredHalf half = clamped_half(x);
    std::memcpy(block + index * 2, &half.bits, 2);
    clamps += half.clamped ? 1 : 0;
  };
  for (std::int64_t d = 0; d < head_width; ++d) {
    store(k[d], k_block, d * kBlockKeys + j);
    store(v[d], v_block, j * head_width + d);
  }
  return clamps;
}

// One query over one chunk. Only keys first_key <= j <= last_key are visited: a row behind it may hold anything.
void attend_query(const AttendChunk& work, std::int64_t query) {
  const float* q = work.q[query];
  const std::int64_t width = work.head_width;
  const std::int64_t last_key = work.last_key[query];
  float* acc = work.acc + query * width;
  VirtualLanes l{};
  float m = -kInfinity;
  for (std::int64_t d = 0; d < width; ++d) acc[d] = 0.0F;
  for (std::int64_t block = 0; block < kChunkKeys / kBlockKeys; ++block) {
    const std::int64_t visible = last_key - (work.chunk_begin + block * kBlockKeys) + 1;
    if (visible <= 0) break;
    const std::int64_t keys = visible < kBlockKeys ? visible : kBlockKeys;
    const std::int64_t first = work.chunk_begin + block == 0 ? work.first_key : 0;
    std::array<float, kBlockKeys> s{};
    float m_next = m;
    for (std::int64_t j = first; j < keys; ++j) {
      float& s_j = s[static_cast<std::size_t>(j)];
      for (std::int64_t d = 0; d < width; ++d) {
        s_j = std::fma(q[d], load(work.k_blocks[block], work.kv_type, d * kBlockKeys + j), s_j);
      }
      m_next = larger(m_next, s_j);
    }
    m_next = positive_zero(m_next);
    const float r = m == -kInfinity ? 0.0F : exp32(m - m_next);
    m = m_next;
    for (float& lane : l) lane *= r;
    for (std::int64_t d = 0; d < width; ++d) acc[d] *= r;
    for (std::int64_t j = first; j < keys; ++j) {
      const float p_j = exp32(s[static_cast<std::size_t>(j)] - m);
      l[static_cast<std::size_t>(j % kVirtualLanes)] += p_j;
      for (std::int64_t d = 0; d < width; ++d) {
        acc[d] = std::fma(p_j, load(work.v_blocks[block], work.kv_type, j * width + d), acc[d]);
      }
    }
  }
  work.m[query] = m;
  work.l[query] = reduce(l);
}

void attend_chunk(const AttendChunk& work) {
  for (std::int64_t query = 0; query < work.queries; ++query) attend_query(work, query);
}

void attend_merge(float* m_a, float* l_a, float* acc_a, float m_b, float l_b, const float* acc_b,
                  std::int64_t head_width) {
  const float m = larger(*m_a, m_b);
  const float e_a = exp32(*m_a - m);
  const float e_b = exp32(m_b - m);
  *m_a = m;
  *l_a = std::fma(l_b, e_b, *l_a * e_a);
  for (std::int64_t d = 0; d < head_width; ++d) acc_a[d] = std::fma(acc_b[d], e_b, acc_a[d] * e_a);
}

void attend_finish(const float* acc, float l, std::int64_t head_width, float* o) {
  for (std::int64_t d = 0; d < head_width; ++d) o[d] = acc[d] / l;
}

void logp_tiles(const float* z, std::int64_t vocab, Range tiles, float* tile_max, float* tile_sum) {
  for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const std::int64_t begin = tile * kVocabularyTile;
    const std::int64_t end = begin + kVocabularyTile < vocab ? begin + kVocabularyTile : vocab;
    float m = -kInfinity;
    for (std::int64_t i = begin; i < end; ++i) m = larger(m, z[i]);
    m = positive_zero(m);
    // All -inf: exp(-inf - 0) = 0 each, where -inf - -inf would be NaN; a real NaN stays one.
    const float reference = m == -kInfinity ? 0.0F : m;
    VirtualLanes lanes{};
    for (std::int64_t i = begin; i < end; ++i) {
      lanes[static_cast<std::size_t>((i - begin) % kVirtualLanes)] += exp32(z[i] - reference);
    }
    tile_max[tile] = m;
    tile_sum[tile] = reduce(lanes);
  }
}

std::int64_t argmax(const float* z, std::int64_t n, bool* has_nan) {
  std::int64_t best = -1;
  *has_nan = false;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::isnan(z[i])) {
      *has_nan = true;
    } else if (best < 0 || z[i] > z[best]) {
      best = i;
    }
  }
  return best < 0 ? 0 : best;
}

}  // namespace

void fill_vector_kernels_portable(KernelTable& table) {
  table.rms_norm = rms_norm;
  table.silu_mul = silu_mul;
  table.sigmoid_mul = sigmoid_mul;
  table.add = add;
  table.scale = scale;
  table.rope_angles = rope_angles;
  table.rope_rotate = rope_rotate;
  table.store_kv = store_kv;
  table.attend_chunk = attend_chunk;
  table.attend_merge = attend_merge;
  table.attend_finish = attend_finish;
  table.logp_tiles = logp_tiles;
  table.argmax = argmax;
  fill_delta_kernels_portable(table);
}

}  // namespace outrider
