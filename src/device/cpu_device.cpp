#include "device/cpu_device.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/math.h"

namespace outrider {
namespace {

// Below this many values an operation runs in the caller: waking workers would cost more than it saves.
constexpr std::int64_t kInlineValues = 16384;
constexpr std::int64_t kTileVocab = 256;      // numerics.md section 7
constexpr std::int64_t kNormalizerRows = 16;  // rows whose tiles are kept at a time
constexpr std::int64_t kTilesPerTask = 16;
constexpr std::int64_t kArgmaxRange = 8192;
constexpr std::int64_t kArgmaxRanges = 64;

// Tokens per task so that `width` values each make a task worth its claim, and all threads get some.
std::int64_t tokens_per_task(std::int64_t tokens, std::int64_t width, int threads) {
  if (tokens * width <= kInlineValues) return tokens;
  const std::int64_t worth = std::max<std::int64_t>(1, 4096 / width);
  return std::min(worth, (tokens + threads - 1) / threads);
}

void check_tensor(const Tensor& x, std::int64_t rows, std::int64_t width, const char* what) {
  OUTRIDER_CHECK(x.data != nullptr || rows == 0, "{} has no data", what);
  OUTRIDER_CHECK(x.rows == rows && x.width == width, "{} is [{}, {}], expected [{}, {}]", what, x.rows, x.width, rows,
                 width);
  OUTRIDER_CHECK(x.stride >= x.width, "{}: stride {} below width {}", what, x.stride, x.width);
}

// ln of the f64 sum over tiles (numerics.md section 7). A row of -inf has the sum 0, ln -inf: the sampler reports the
// dead end. Tiles of NaN or +inf have a NaN sum, which stays one whatever the maximum is.
double ln_of_tiles(std::span<const float> tile_max, const float* tile_sum, float top) {
  const bool nothing = top == -std::numeric_limits<float>::infinity();  // no number above -inf: -inf - -inf is NaN
  double sum = 0;
  for (std::size_t t = 0; t < tile_max.size(); ++t)
    sum += static_cast<double>(tile_sum[t]) *
           (nothing ? 1.0 : exp64(static_cast<double>(tile_max[t]) - static_cast<double>(top)));
  if (std::isnan(sum)) return sum;
  return sum > 0 ? log64(sum) : -std::numeric_limits<double>::infinity();
}

}  // namespace

CpuDevice::CpuDevice(int threads, const KernelTable& kernels)
    : pool_(threads), kernels_(kernels), name_(fmt::format("cpu {}", name_of(kernels.isa))), shares_(pool_.threads()) {}

std::unique_ptr<Device> make_cpu_device(int threads) { return std::make_unique<CpuDevice>(threads, kernels()); }

std::unique_ptr<Device> make_cpu_device(int threads, const KernelTable& kernels) {
  return std::make_unique<CpuDevice>(threads, kernels);
}

void CpuDevice::parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  parallel(count, [&](std::int64_t index, int) { task(index); });
}

std::size_t row_of_token(const RaggedBatch& batch, std::int64_t token) {
  const auto after = std::upper_bound(batch.rows.begin(), batch.rows.end(), token,
                                      [](std::int64_t t, const BatchRow& row) { return t < row.begin; });
  return static_cast<std::size_t>(after - batch.rows.begin()) - 1;
}

void check_batch(const RaggedBatch& batch) {
  std::int64_t next = 0;
  for (const BatchRow& row : batch.rows) {
    OUTRIDER_CHECK(row.begin == next && row.end > row.begin && row.position >= 0, "row [{}, {}) at {} after token {}",
                   row.begin, row.end, row.position, next);
    OUTRIDER_CHECK(row.first_key >= 0 && row.first_key < kBlockKeys && row.first_key <= row.position,
                   "first key {} of a row at {}", row.first_key, row.position);
    const std::int64_t positions = row.position + row.end - row.begin;
    OUTRIDER_CHECK(static_cast<std::int64_t>(row.blocks.size()) >= kv_blocks_for(positions),
                   "{} blocks for {} positions", row.blocks.size(), positions);
    next = row.end;
  }
  OUTRIDER_CHECK(next == batch.size(), "rows end at {}, tokens at {}", next, batch.size());
}

void CpuDevice::embed(const PackedMatrix& table, std::span<const std::int32_t> ids, Tensor out) {
  check_float_environment();
  const auto tokens = static_cast<std::int64_t>(ids.size());
  check_tensor(out, tokens, table.k, "embedding output");
  for (const std::int32_t id : ids) OUTRIDER_CHECK(id >= 0 && id < table.n, "token id {} of {}", id, table.n);
  const std::int64_t step = tokens_per_task(tokens, table.k, threads());
  parallel(tokens == 0 ? 0 : ceil_div(tokens, step), [&](std::int64_t index, int) {
    for (std::int64_t t = index * step; t < std::min(tokens, (index + 1) * step); ++t)
      kernels_.unpack_row(table, ids[static_cast<std::size_t>(t)], out.row(t));
  });
}

void CpuDevice::rms_norm(Tensor x, const float* w, float eps, Tensor out) {
  check_float_environment();
  check_tensor(x, x.rows, x.width, "norm input");
  check_tensor(out, x.rows, x.width, "norm output");
  const std::int64_t step = tokens_per_task(x.rows, x.width, threads());
  parallel(x.rows == 0 ? 0 : ceil_div(x.rows, step), [&](std::int64_t index, int) {
    for (std::int64_t t = index * step; t < std::min(x.rows, (index + 1) * step); ++t)
      kernels_.rms_norm(x.row(t), w, x.width, eps, out.row(t));
  });
}

void CpuDevice::swiglu(Tensor gate, Tensor up) {
  check_tensor(gate, gate.rows, gate.width, "gate");
  check_tensor(up, gate.rows, gate.width, "up");
  const std::int64_t step = tokens_per_task(gate.rows, gate.width, threads());
  parallel(gate.rows == 0 ? 0 : ceil_div(gate.rows, step), [&](std::int64_t index, int) {
    for (std::int64_t t = index * step; t < std::min(gate.rows, (index + 1) * step); ++t)
      kernels_.silu_mul(gate.row(t), up.row(t), gate.width, gate.row(t));
  });
}

void CpuDevice::rope_angles(const RaggedBatch& batch, std::span<const RowFrequencies> rows, RopeAngles out) {
  check_float_environment();
  check_batch(batch);
  OUTRIDER_CHECK(rows.size() == batch.rows.size(), "{} frequencies for {} rows", rows.size(), batch.rows.size());
  const std::int64_t half = out.cos.width;
  check_tensor(out.cos, batch.size(), half, "cos");
  check_tensor(out.sin, batch.size(), half, "sin");
  // sin and cos in double cost about 30 times a multiply-add: 16 values are worth a claim per 512 of the others.
  const std::int64_t step = tokens_per_task(batch.size(), half * 64, threads());
  parallel(batch.size() == 0 ? 0 : ceil_div(batch.size(), step), [&](std::int64_t index, int) {
    std::size_t r = row_of_token(batch, index * step);
    for (std::int64_t t = index * step; t < std::min(batch.size(), (index + 1) * step); ++t) {
      while (t >= batch.rows[r].end) ++r;
      const BatchRow& row = batch.rows[r];
      kernels_.rope_angles(row.position + t - row.begin, rows[r].inv_freq, half, rows[r].factor, out.cos.row(t),
                           out.sin.row(t));
    }
  });
}

void CpuDevice::rope_store(const AttentionShape& shape, const RopeAngles& angles, const RaggedBatch& batch,
                           const KvLayout& layout, std::int64_t layer, Tensor q, Tensor k, Tensor v,
                           std::uint32_t* faults, std::int64_t* clamps) {
  const std::int64_t tokens = batch.size(), width = shape.head_width, half = shape.rotary_half;
  check_batch(batch);
  check_tensor(q, tokens, shape.heads * shape.q_stride(), "q");
  check_tensor(k, tokens, shape.kv_heads * width, "k");
  check_tensor(v, tokens, shape.kv_heads * width, "v");
  OUTRIDER_CHECK(layout.kv_heads == shape.kv_heads && layout.head_width == width && layer >= 0 && layer < layout.layers,
                 "cache of {} layers, [{}, {}] per token; layer {} stores [{}, {}]", layout.layers, layout.kv_heads,
                 layout.head_width, layer, shape.kv_heads, width);
  OUTRIDER_CHECK(half >= 0 && 2 * half <= width, "{} rotated pairs in a head of {}", half, width);
  if (half > 0) check_tensor(angles.cos, tokens, half, "cos");
  if (half > 0) check_tensor(angles.sin, tokens, half, "sin");
  const float q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
  const auto ready = [&](float* head, const float* norm, std::int64_t t) {
    if (norm != nullptr) kernels_.rms_norm(head, norm, width, shape.norm_eps, head);
    if (half > 0) kernels_.rope_rotate(head, angles.cos.row(t), angles.sin.row(t), half, shape.pairs);
  };
  const std::int64_t step = tokens_per_task(tokens, (shape.heads + 2 * shape.kv_heads) * width, threads());
  parallel(tokens == 0 ? 0 : ceil_div(tokens, step), [&](std::int64_t index, int) {
    std::size_t r = row_of_token(batch, index * step);
    for (std::int64_t t = index * step; t < std::min(tokens, (index + 1) * step); ++t) {
      while (t >= batch.rows[r].end) ++r;
      const BatchRow& row = batch.rows[r];
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        float* const head = q.row(t) + h * shape.q_stride();
        ready(head, shape.q_norm, t);
        kernels_.scale(head, q_scale, width, head);
      }
      const std::int64_t position = row.position + t - row.begin;
      std::byte* block = row.blocks[static_cast<std::size_t>(position / kBlockKeys)];
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        ready(k.row(t) + h * width, shape.k_norm, t);
        const std::int64_t clamped =
            kernels_.store_kv(k.row(t) + h * width, v.row(t) + h * width, width, position % kBlockKeys, layout.type,
                              block + layout.k_offset(layer, h), block + layout.v_offset(layer, h), &faults[t]);
        if (clamps != nullptr) clamps[t] += clamped;
      }
    }
  });
}

void CpuDevice::gather(Tensor x, std::span<const std::int64_t> picks, Tensor out) {
  check_tensor(out, static_cast<std::int64_t>(picks.size()), x.width, "gathered rows");
  for (std::size_t i = 0; i < picks.size(); ++i) {
    OUTRIDER_CHECK(picks[i] >= 0 && picks[i] < x.rows, "row {} of {}", picks[i], x.rows);
    std::memcpy(out.row(static_cast<std::int64_t>(i)), x.row(picks[i]), static_cast<std::size_t>(x.width) * 4);
  }
}

std::size_t CpuDevice::normalizer_scratch_bytes(std::int64_t rows, std::int64_t vocab) const {
  return static_cast<std::size_t>(std::min(rows, kNormalizerRows) * ceil_div(vocab, kTileVocab) * 2) * sizeof(float);
}

void CpuDevice::reserve_normalizers(std::int64_t rows, std::int64_t vocab) {
  const std::size_t needed = normalizer_scratch_bytes(rows, vocab);
  if (tiles_.size() >= needed) return;
  tiles_ = AlignedBuffer();  // the old and the new one are never held at once
  tiles_ = AlignedBuffer(needed, MemoryPart::scratch);
}

void CpuDevice::log_normalizers(Tensor z, float* max, double* ln_sum) {
  check_tensor(z, z.rows, z.width, "logits");
  if (z.rows == 0) return;
  const std::int64_t tiles = ceil_div(z.width, kTileVocab), tasks_per_row = ceil_div(tiles, kTilesPerTask);
  const std::int64_t group = std::min(z.rows, kNormalizerRows);
  reserve_normalizers(z.rows, z.width);
  float* const tile_max = tiles_.as<float>().data();
  float* const tile_sum = tile_max + group * tiles;
  for (std::int64_t begin = 0; begin < z.rows; begin += group) {
    const std::int64_t rows = std::min(group, z.rows - begin);
    parallel(rows * tasks_per_row, [&](std::int64_t index, int) {
      const std::int64_t r = index / tasks_per_row, first = index % tasks_per_row * kTilesPerTask;
      kernels_.logp_tiles(z.row(begin + r), z.width, {first, std::min(tiles, first + kTilesPerTask)},
                          tile_max + r * tiles, tile_sum + r * tiles);
    });
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* m = tile_max + r * tiles;
      const float top = *std::max_element(m, m + tiles);
      max[begin + r] = top;
      ln_sum[begin + r] = ln_of_tiles({m, static_cast<std::size_t>(tiles)}, tile_sum + r * tiles, top);
    }
  }
}

void CpuDevice::argmax(Tensor z, std::int32_t* ids, std::uint32_t* faults) {
  check_tensor(z, z.rows, z.width, "logits");
  OUTRIDER_CHECK(z.width > 0, "logits without a vocabulary");
  const std::int64_t step = std::max(kArgmaxRange, ceil_div(z.width, kArgmaxRanges));
  const std::int64_t ranges = ceil_div(z.width, step);
  for (std::int64_t r = 0; r < z.rows; ++r) {
    std::array<std::int64_t, kArgmaxRanges> best{};
    std::array<bool, kArgmaxRanges> nan{};
    const float* row = z.row(r);
    parallel(ranges, [&](std::int64_t index, int) {
      const std::int64_t begin = index * step;
      const auto i = static_cast<std::size_t>(index);
      best[i] = begin + kernels_.argmax(row + begin, std::min(step, z.width - begin), &nan[i]);
    });
    std::int64_t top = 0;  // of a row of NaN, as the kernel answers it
    for (std::size_t i = 0; i < static_cast<std::size_t>(ranges); ++i) {
      if (row[best[i]] > row[top] || std::isnan(row[top])) top = best[i];
      if (nan[i]) faults[r] |= kFaultNonFinite;
    }
    ids[r] = std::isnan(row[top]) ? 0 : static_cast<std::int32_t>(top);
  }
}

}  // namespace outrider
