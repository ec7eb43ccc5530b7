#include "engine/kernel_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/worker_pool.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

// Far above the last cache, so that few rows are read from memory: 24 matrices of 4 bits.
constexpr std::size_t kWeightBytes = std::size_t{96} << 20;
// Many rows are bound by arithmetic, and one matrix is enough to show it: so many multiply-adds at most (40 ms).
constexpr std::int64_t kMostMacs = std::int64_t{4} << 30;
constexpr AttentionShape kAttention = {.heads = 16, .kv_heads = 2, .head_width = 128};
constexpr KvLayout kKv = {.layers = 24, .kv_heads = 2, .head_width = 128, .type = FloatType::f16};
constexpr std::int64_t kBlocks = (KernelBench::kMostContext + KernelBench::kMostTokens) / kBlockKeys;

std::size_t float_bytes(std::int64_t rows, std::int64_t width) {
  return static_cast<std::size_t>(rows * width) * sizeof(float);
}

// Knuth's MMIX generator; the high half is used.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 1) {}
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  // A value of about 2^-6, of either sign: exponents are fixed, so that nothing is subnormal or overflows.
  void write(FloatType type, std::byte* out) {
    const std::uint32_t r = next();
    const std::uint32_t f32 = (r & 0x807fffffU) | 0x3c000000U;
    const auto f16 = static_cast<std::uint16_t>(((r >> 16) & 0x83ffU) | 0x2400U);
    const auto bf16 = static_cast<std::uint16_t>(f32 >> 16);
    if (type == FloatType::f32) std::memcpy(out, &f32, 4);
    if (type == FloatType::f16) std::memcpy(out, &f16, 2);
    if (type == FloatType::bf16) std::memcpy(out, &bf16, 2);
  }
  void fill(FloatType type, std::span<std::byte> out) {
    for (std::size_t at = 0; at < out.size(); at += size_of(type)) write(type, out.data() + at);
  }

 private:
  std::uint64_t state_;
};

std::size_t scratch_bytes(const Device& device) {
  std::size_t linear = 0;
  for (const WeightFormat& format : weight_formats())
    linear = std::max(linear, device.linear_scratch_bytes(LinearOperation::linear, KernelBench::kMostTokens,
                                                          KernelBench::kInputs, input_form(format.form)));
  return std::max(linear, device.attention_scratch_bytes(KernelBench::kMostTokens, 1, kAttention,
                                                         KernelBench::kMostContext + KernelBench::kMostTokens));
}

constexpr std::int64_t kWidest = std::max(KernelBench::kOutputs, kAttention.heads* kAttention.head_width);

}  // namespace

std::vector<WeightFormat> weight_formats() {
  std::vector<WeightFormat> out;
  const auto add = [&](std::string name, PackedKind kind, FloatType type, int bits, int group) {
    out.push_back({std::move(name),
                   {.kind = kind,
                    .scale_type = type,
                    .bits = bits,
                    .group = group,
                    .n = KernelBench::kOutputs,
                    .k = KernelBench::kInputs}});
  };
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int group : {32, 64, 128})
      add(fmt::format("{} bit, groups of {}", bits, group), PackedKind::affine, FloatType::bf16, bits, group);
  add("mxfp4", PackedKind::e2m1, FloatType::f32, 4, 32);
  add("nvfp4", PackedKind::e2m1, FloatType::f32, 4, 16);
  add("bf16", PackedKind::dense, FloatType::bf16, 0, 0);
  add("f16", PackedKind::dense, FloatType::f16, 0, 0);
  add("f32", PackedKind::dense, FloatType::f32, 0, 0);
  return out;
}

std::size_t KernelBench::bytes(int threads) {
  const auto device = make_cpu_device(threads);
  return kWeightBytes + kBlocks * kKv.block_bytes() + 2 * float_bytes(kMostTokens, kWidest) + scratch_bytes(*device);
}

KernelBench::KernelBench(Device& device)
    : device_(device),
      weights_(kWeightBytes, MemoryPart::weights),
      kv_(kBlocks * kKv.block_bytes(), MemoryPart::kv),
      inputs_(float_bytes(kMostTokens, kWidest), MemoryPart::scratch),
      outputs_(float_bytes(kMostTokens, kWidest), MemoryPart::scratch),
      arena_(scratch_bytes(device)) {
  Random(1).fill(FloatType::f32, {inputs_.data(), inputs_.size()});
  for (std::int64_t b = 0; b < kBlocks; ++b)
    blocks_.push_back(kv_.data() + static_cast<std::size_t>(b) * kKv.block_bytes());
  device_.parallel_for(kBlocks, [&](std::int64_t b) {
    Random(static_cast<std::uint64_t>(b))
        .fill(FloatType::f16, {blocks_[static_cast<std::size_t>(b)], kKv.block_bytes()});
  });
}

void KernelBench::load_format(const WeightFormat& format) {
  matrix_ = format.form;
  const std::size_t block = matrix_.block_bytes(), blocks = kWeightBytes / block;
  constexpr std::size_t kTaskBlocks = 256;
  device_.parallel_for(static_cast<std::int64_t>((blocks + kTaskBlocks - 1) / kTaskBlocks), [&](std::int64_t task) {
    Random random(static_cast<std::uint64_t>(task));
    const auto first = static_cast<std::size_t>(task) * kTaskBlocks;
    for (std::size_t b = first; b < std::min(blocks, first + kTaskBlocks); ++b) {
      std::byte* at = weights_.data() + b * block;
      const std::size_t head = matrix_.coded() ? matrix_.head_bytes() : block;
      random.fill(matrix_.scale_type, {at, head});
      for (std::size_t i = head; i < block; i += 4) {
        const std::uint32_t word = random.next();
        std::memcpy(at + i, &word, 4);
      }
    }
  });
}

std::int64_t KernelBench::matrices(std::int64_t tokens) const {
  const auto held = static_cast<std::int64_t>(kWeightBytes / matrix_.bytes());
  return std::clamp<std::int64_t>(kMostMacs / (tokens * kOutputs * kInputs), 1, held);
}

double KernelBench::product_seconds(std::int64_t tokens) {
  OUTRIDER_CHECK(tokens <= kMostTokens && matrix_.n > 0);
  const Tensor x = {reinterpret_cast<float*>(inputs_.data()), tokens, kInputs, kInputs};
  const Tensor y = {reinterpret_cast<float*>(outputs_.data()), tokens, kOutputs, kOutputs};
  std::vector<std::uint32_t> faults(static_cast<std::size_t>(tokens), 0);
  const std::int64_t count = matrices(tokens);
  enter_float_environment();
  const auto begin = Clock::now();
  for (std::int64_t i = 0; i < count; ++i) {
    PackedMatrix matrix = matrix_;
    matrix.data = weights_.data() + static_cast<std::size_t>(i) * matrix_.bytes();
    const LinearPart part = {.weight = &matrix, .out = y};
    const Arena::Scope scope(arena_);
    device_.linear(x, {&part, 1}, arena_, faults.data());
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::int64_t KernelBench::attention_layers(std::int64_t tokens) { return tokens == 1 ? kKv.layers : 2; }

std::uint64_t KernelBench::kv_bytes_of(std::int64_t tokens, std::int64_t context) {
  return static_cast<std::uint64_t>((context + tokens) * attention_layers(tokens)) * kKv.token_bytes() /
         static_cast<std::uint64_t>(kKv.layers);
}

std::int64_t KernelBench::attention_macs_of(std::int64_t tokens, std::int64_t context) {
  const std::int64_t pairs = tokens * context + tokens * (tokens + 1) / 2;
  return attention_layers(tokens) * pairs * 2 * kAttention.heads * kAttention.head_width;
}

double KernelBench::attention_seconds(std::int64_t tokens, std::int64_t context) {
  OUTRIDER_CHECK(tokens <= kMostTokens && context <= kMostContext);
  constexpr std::int64_t kWidth = kAttention.heads * kAttention.head_width;
  const Tensor q = {reinterpret_cast<float*>(inputs_.data()), tokens, kWidth, kWidth};
  const Tensor out = {reinterpret_cast<float*>(outputs_.data()), tokens, kWidth, kWidth};
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens), 0);
  const BatchRow row = {0, tokens, context, context + tokens, blocks_};
  enter_float_environment();
  const auto begin = Clock::now();
  for (std::int64_t layer = 0; layer < attention_layers(tokens); ++layer) {
    const Arena::Scope scope(arena_);
    device_.attention(kAttention, {ids, {&row, 1}}, kKv, layer, q, out, arena_);
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace outrider
