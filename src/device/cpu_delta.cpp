// The gated delta net between its projections. Two stages of one loop: first every head of q, k and v gets its
// convolution, activation and norm over all rows, and every token its gates; then columns of the state walk through
// their row's tokens, those of its log first. A column of S depends on nothing but its own head's inputs, so any split
// gives the same bytes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "device/cpu_device.h"

namespace outrider {
namespace {

// Values of p one task of the first stage brings into form: worth its claim.
constexpr std::int64_t kTaskValues = 4096;
constexpr std::int64_t kGateTokens = 64;  // tokens of one task of gates
// Columns of S a task takes at least: with 128 keys 16 KiB of state.
constexpr std::int64_t kLeastColumns = 32;
constexpr std::int64_t kColumnUnit = 16;
// States of a step from this size on are streamed: a model has twenty times their bytes in weights, which pass through
// the caches before the next step reads them.
constexpr std::size_t kStreamedBytes = std::size_t{8} << 20;

const float* floats_at(const std::byte* slot, std::size_t offset) {
  return slot == nullptr ? nullptr : reinterpret_cast<const float*>(slot + offset);
}
float* floats_at(std::byte* slot, std::size_t offset) { return reinterpret_cast<float*>(slot + offset); }
const float* log_at(const RecurrentLog& log, std::int64_t token, const RecurrentLayout& layout, std::int64_t layer) {
  return reinterpret_cast<const float*>(log.data) + layout.log_at(log.first + token, layer);
}

void check_stores(const BatchRow& row) {
  const RecurrentAccess& access = row.recurrent;
  std::int64_t last = 0;
  for (const RecurrentStore& store : access.stores) {
    OUTRIDER_CHECK(store.tokens > last && store.slot != nullptr && store.slot != access.read,
                   "a store after {} tokens follows one after {}, or has no slot of its own", store.tokens, last);
    last = store.tokens;
  }
  const std::int64_t tokens = row.end - row.begin;
  if (access.write_log == nullptr)
    OUTRIDER_CHECK(last == tokens, "the last store is after {} of {} tokens", last, tokens);
  else
    OUTRIDER_CHECK(last > 0 && access.stores.front().tokens == 1 && last <= tokens,
                   "a log behind stores after {} to {} of {} tokens", last > 0 ? access.stores.front().tokens : 0, last,
                   tokens);
  OUTRIDER_CHECK(access.log.tokens == 0 || access.read != nullptr, "a log of {} tokens behind no state",
                 access.log.tokens);
}

}  // namespace

class CpuDevice::DeltaWork {
 public:
  DeltaWork(CpuDevice& device, const DeltaShape& shape, const RaggedBatch& batch, const RecurrentLayout& layout,
            std::int64_t layer, Tensor p, Tensor a, Tensor b)
      : device_(device),
        kernels_(device.kernels_),
        shape_(shape),
        batch_(batch),
        layout_(layout),
        layer_(layer),
        p_(p),
        a_(a),
        b_(b),
        q_scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(layout.key_width)))) {}

  void run() {
    const std::int64_t tokens = batch_.size(), threads = device_.threads();
    const std::int64_t heads = 2 * layout_.key_heads + layout_.value_heads;
    // Few values: the first stage is one task, which the caller does before the others wake.
    const bool few = tokens * layout_.channels() <= kTaskValues;
    const std::int64_t step = std::clamp<std::int64_t>(kTaskValues * heads / (tokens * layout_.channels()), 1,
                                                       few ? heads : ceil_div(heads, threads));
    const std::int64_t inputs = ceil_div(heads, step), gates = ceil_div(tokens, kGateTokens);
    const auto prepare = [&](std::int64_t index) {
      if (index >= inputs) return open_gates((index - inputs) * kGateTokens);
      for (std::int64_t head = index * step; head < std::min(heads, (index + 1) * step); ++head) form_head(head);
    };
    std::int64_t first = inputs + gates;
    if (few) {
      for (std::int64_t index = 0; index < first; ++index) prepare(index);
      first = 0;
    }
    const std::int64_t columns = columns_per_task(), blocks = ceil_div(layout_.value_width, columns);
    StageGate prepared(first);
    device_.parallel(first + std::ssize(batch_.rows) * layout_.value_heads * blocks, [&](std::int64_t index, int) {
      if (index < first) {
        prepare(index);
        prepared.arrive();
        return;
      }
      prepared.wait();
      const std::int64_t unit = index - first, begin = unit % blocks * columns;
      const std::int64_t head = unit / blocks % layout_.value_heads, row = unit / blocks / layout_.value_heads;
      walk(batch_.rows[static_cast<std::size_t>(row)], head, {begin, std::min(layout_.value_width, begin + columns)});
    });
  }

 private:
  // Whole heads where there are enough of them for all threads, else parts of heads.
  std::int64_t columns_per_task() const {
    const std::int64_t heads = std::ssize(batch_.rows) * layout_.value_heads;
    const std::int64_t parts = ceil_div(std::int64_t{4} * device_.threads(), heads);
    const std::int64_t columns = ceil_div(ceil_div(layout_.value_width, parts), kColumnUnit) * kColumnUnit;
    return std::max(columns, kLeastColumns);
  }

  // Head `head` of q, then k, then v: its raw inputs to the stores and the log, then u over p, from the last token
  // down, so that every token finds the raw inputs before it.
  void form_head(std::int64_t head) const {
    const std::int64_t keys = 2 * layout_.key_heads * layout_.key_width;
    const bool is_key = head < 2 * layout_.key_heads;
    const std::int64_t width = is_key ? layout_.key_width : layout_.value_width;
    const std::int64_t channel = is_key ? head * width : keys + (head - 2 * layout_.key_heads) * width;
    for (const BatchRow& row : batch_.rows) {
      for (const RecurrentStore& store : row.recurrent.stores) store_window(row, store, channel, width);
      if (row.recurrent.write_log != nullptr)
        for (std::int64_t t = 1; t < row.end - row.begin; ++t)
          std::copy_n(p_.row(row.begin + t) + channel, width, new_log(row, t) + channel);
      for (std::int64_t t = row.end - row.begin - 1; t >= 0; --t) {
        std::array<const float*, kMaxConvTaps> inputs{};
        for (std::int64_t j = 0; j < layout_.taps; ++j)
          inputs[static_cast<std::size_t>(j)] = input(row, t - (layout_.taps - 1) + j, channel);
        float* const u = p_.row(row.begin + t) + channel;
        kernels_.conv_silu(inputs.data(), shape_.conv + channel, layout_.channels(), layout_.taps, width, u);
        if (is_key) kernels_.l2_norm(u, width, shape_.l2_eps, u);
        if (head < layout_.key_heads) kernels_.scale(u, q_scale_, width, u);
        if (is_key && head >= layout_.key_heads && t > 0 && row.recurrent.write_log != nullptr)
          std::copy_n(u, width, new_log(row, t) + layout_.channels() + (head - layout_.key_heads) * width);
      }
    }
  }

  // Where this layer's part of the row's log begins for its token t >= 1.
  float* new_log(const BatchRow& row, std::int64_t t) const {
    return floats_at(row.recurrent.write_log, 0) + layout_.log_at(t - 1, layer_);
  }

  // The raw inputs of the row's token t from `channel` on; of a token before the step those of the log or of the read
  // slot's window; null: zeros.
  const float* input(const BatchRow& row, std::int64_t t, std::int64_t channel) const {
    if (t >= 0) return p_.row(row.begin + t) + channel;
    const RecurrentLog& log = row.recurrent.log;
    if (t + log.tokens >= 0) return log_at(log, t + log.tokens, layout_, layer_) + channel;
    const float* window = floats_at(row.recurrent.read, layout_.window_offset(layer_));
    return window == nullptr ? nullptr : window + (layout_.taps - 1 + t + log.tokens) * layout_.channels() + channel;
  }

  void store_window(const BatchRow& row, const RecurrentStore& store, std::int64_t channel, std::int64_t width) const {
    float* const window = floats_at(store.slot, layout_.window_offset(layer_));
    for (std::int64_t j = 0; j < layout_.taps - 1; ++j) {
      const float* from = input(row, store.tokens - (layout_.taps - 1) + j, channel);
      float* const to = window + j * layout_.channels() + channel;
      if (from != nullptr)
        std::memcpy(to, from, static_cast<std::size_t>(width) * sizeof(float));
      else
        std::fill_n(to, width, 0.0F);
    }
  }

  void open_gates(std::int64_t begin) const {
    for (std::int64_t t = begin; t < std::min(batch_.size(), begin + kGateTokens); ++t)
      kernels_.delta_gates(shape_.a_log, shape_.dt_bias, layout_.value_heads, a_.row(t), b_.row(t));
  }

  // Columns of one head's S through the row's log and tokens.
  void walk(const BatchRow& row, std::int64_t head, Range columns) const {
    const std::int64_t key_head = head / (layout_.value_heads / layout_.key_heads);
    const std::int64_t keys = layout_.key_heads * layout_.key_width;
    const std::int64_t value = head * layout_.value_width + columns.begin;
    const std::size_t offset =
        layout_.state_offset(layer_) +
        static_cast<std::size_t>(head * layout_.key_width * layout_.value_width + columns.begin) * sizeof(float);
    const bool large = static_cast<std::size_t>(std::ssize(batch_.rows)) * layout_.slot_bytes() >= kStreamedBytes;
    const float* q = p_.row(row.begin) + key_head * layout_.key_width;
    // Of an entry of a log.
    const std::int64_t log_k = layout_.channels(), log_delta = log_k + keys,
                       log_g = log_delta + layout_.value_heads * layout_.value_width;
    DeltaSteps steps = {.from = floats_at(row.recurrent.read, offset),
                        .state_stride = layout_.value_width,
                        .key_width = layout_.key_width,
                        .columns = columns.end - columns.begin,
                        .tokens = row.end - row.begin,
                        .q = q,
                        .k = q + keys,
                        .v = p_.row(row.begin) + 2 * keys + value,
                        .token_stride = p_.stride,
                        .g = a_.row(row.begin) + head,
                        .b = b_.row(row.begin) + head,
                        .gate_stride = a_.stride,
                        .stores = row.recurrent.stores,
                        .store_offset = offset,
                        .store = large ? DeltaStore::streamed : DeltaStore::cached};
    if (row.recurrent.log.tokens > 0) {
      const float* log = log_at(row.recurrent.log, 0, layout_, layer_);
      steps.log = {row.recurrent.log.tokens, log + log_k + key_head * layout_.key_width, log + log_delta + value,
                   log + log_g + head, layout_.log_stride()};
    }
    if (row.recurrent.write_log != nullptr && steps.tokens > 1) {
      float* const log = new_log(row, 1);
      steps.deltas = log + log_delta + value;
      steps.delta_stride = layout_.log_stride();
      if (columns.begin == 0)
        for (std::int64_t t = 1; t < steps.tokens; ++t) new_log(row, t)[log_g + head] = a_.row(row.begin + t)[head];
    }
    kernels_.delta_steps(steps);
  }

  CpuDevice& device_;
  const KernelTable& kernels_;
  const DeltaShape& shape_;
  const RaggedBatch& batch_;
  const RecurrentLayout& layout_;
  std::int64_t layer_;
  Tensor p_, a_, b_;
  float q_scale_;
};

void CpuDevice::gated_delta(const DeltaShape& shape, const RaggedBatch& batch, const RecurrentLayout& layout,
                            std::int64_t layer, Tensor p, Tensor a, Tensor b) {
  check_float_environment();
  check_batch(batch);
  OUTRIDER_CHECK(layer >= 0 && layer < layout.layers, "layer {} of {} recurrent layers", layer, layout.layers);
  OUTRIDER_CHECK(layout.key_heads > 0 && layout.value_heads % layout.key_heads == 0, "{} value heads over {} key heads",
                 layout.value_heads, layout.key_heads);
  OUTRIDER_CHECK(layout.key_width <= kMaxDeltaKeys, "{} keys, the most is {}", layout.key_width, kMaxDeltaKeys);
  OUTRIDER_CHECK(layout.taps > 0 && layout.taps <= kMaxConvTaps, "{} taps, the most is {}", layout.taps, kMaxConvTaps);
  OUTRIDER_CHECK(p.rows == batch.size() && p.width == layout.channels(), "p [{}, {}] for {} tokens of {} channels",
                 p.rows, p.width, batch.size(), layout.channels());
  OUTRIDER_CHECK(a.rows == p.rows && a.width == layout.value_heads && b.rows == p.rows && b.width == a.width &&
                     a.stride == b.stride,
                 "a [{}, {}], b [{}, {}] for {} heads", a.rows, a.width, b.rows, b.width, layout.value_heads);
  for (const BatchRow& row : batch.rows) check_stores(row);
  if (batch.size() > 0) DeltaWork(*this, shape, batch, layout, layer, p, a, b).run();
}

}  // namespace outrider
