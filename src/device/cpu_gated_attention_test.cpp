// Attention with an output gate (models.md 3.2): its layout of q, and the gate fused into the coding of o_proj's input.
#include <gtest/gtest.h>

#include "device/packed_fixture.h"
#include "kernels/math.h"

namespace outrider {
namespace {

constexpr std::int64_t kHeads = 6, kKv = 2, kWidth = 24, kHalf = 4, kTokens = 70;
constexpr std::int64_t kPlain = kHeads * kWidth, kGated = 2 * kPlain;

AttentionShape shape_of(AttentionGate gate, const Values& q_norm, const Values& k_norm) {
  return {kHeads, kKv, kWidth, kHalf, RopePairs::half_split, q_norm.data.data(), k_norm.data.data(), 1e-6F, gate};
}

// q [T, H*2D] whose queries are those of `plain` and whose gates are random.
Values with_gates(Values plain, std::uint32_t seed) {
  Values q = Values::random(plain.rows, kGated, seed);
  for (std::int64_t t = 0; t < plain.rows; ++t)
    for (std::int64_t h = 0; h < kHeads; ++h) std::copy_n(plain.row(t) + h * kWidth, kWidth, q.row(t) + h * 2 * kWidth);
  return q;
}

// One step: rope_store, then attention, of a prompt and a decode row.
Values attended(Device& device, const AttentionShape& shape, Values& q) {
  const KvLayout layout = {1, kKv, kWidth, FloatType::f16};
  Values k = Values::random(kTokens, kKv * kWidth, 3), v = Values::random(kTokens, kKv * kWidth, 4);
  Values cos = Values::random(kTokens, kHalf, 5), sin = Values::random(kTokens, kHalf, 6), out(kTokens, kPlain);
  std::vector<std::int32_t> ids(kTokens);
  BlocksFixture prompt(layout, kTokens - 1), decode(layout, 1);
  const std::vector<BatchRow> rows = {{0, kTokens - 1, 0, 0, prompt.pointers},
                                      {kTokens - 1, kTokens, 0, 0, decode.pointers}};
  std::vector<std::uint32_t> faults(kTokens);
  Arena arena(device.attention_scratch_bytes(kTokens, 2, shape, kTokens));
  device.rope_store(shape, {cos.tensor(), sin.tensor()}, {ids, rows}, layout, 0, q.tensor(), k.tensor(), v.tensor(),
                    faults.data(), nullptr);
  device.attention(shape, {ids, rows}, layout, 0, q.tensor(), out.tensor(), arena);
  return out;
}

TEST(GatedAttention, IsThePlainOneOnItsQueriesAndLeavesTheGates) {
  const Values q_norm = Values::random(1, kWidth, 1), k_norm = Values::random(1, kWidth, 2);
  const Values queries = Values::random(kTokens, kPlain, 7);
  for (const int threads : {1, 3}) {
    CpuDevice device(threads, kernels());
    Values plain = queries, gated = with_gates(queries, 8), before = gated;
    const Values expected = attended(device, shape_of(AttentionGate::none, q_norm, k_norm), plain);
    const Values got = attended(device, shape_of(AttentionGate::sigmoid, q_norm, k_norm), gated);
    EXPECT_TRUE(same_bytes(expected.data, got.data));
    for (std::int64_t t = 0; t < kTokens; ++t)
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const std::int64_t gate = (2 * h + 1) * kWidth;
        EXPECT_EQ(std::memcmp(before.row(t) + gate, gated.row(t) + gate, kWidth * 4), 0) << t << " " << h;
      }
  }
}

// Heads of 24 and pieces of 128 columns: heads are cut by pieces, also in their middle.
TEST(GatedAttention, FusedGateEqualsGateThenLinear) {
  const Values no_norm(1, kWidth);
  const AttentionShape shape = shape_of(AttentionGate::sigmoid, no_norm, no_norm);
  const PackedFixture dense = PackedFixture::dense(50, kPlain, 10);
  const PackedFixture coded = PackedFixture::e2m1(50, kPlain, 16, 11);
  for (const PackedMatrix* weight : {&dense.view, &coded.view})
    for (const KernelTable* table : present_tables())
      for (const int threads : {1, 2, 7})
        for (const std::int64_t tokens : {1, 3, 40}) {
          CpuDevice device(threads, *table);
          Values o = Values::random(tokens, kPlain, 12), q = Values::random(tokens, kGated, 13), gated = o;
          for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t c = 0; c < kPlain; ++c)
              gated.row(t)[c] = o.row(t)[c] * sigmoid32(q.row(t)[c / kWidth * 2 * kWidth + kWidth + c % kWidth]);
          Values apart(tokens, 50), fused(tokens, 50);
          std::vector<std::uint32_t> faults(static_cast<std::size_t>(tokens));
          Arena arena(device.linear_scratch_bytes(LinearOperation::gated_linear, tokens, kPlain, input_form(*weight)));
          const LinearPart one = {.weight = weight, .out = apart.tensor()};
          const LinearPart two = {.weight = weight, .out = fused.tensor()};
          device.linear(gated.tensor(), {&one, 1}, arena, faults.data());
          device.gated_linear(shape, o.tensor(), q.tensor(), two, arena, faults.data());
          EXPECT_TRUE(same_bytes(apart.data, fused.data)) << device.name() << " " << threads << " " << tokens;
        }
}

TEST(GatedAttention, AFaultyGateIsFlagged) {
  const Values no_norm(1, kWidth);
  const PackedFixture weight = PackedFixture::e2m1(50, kPlain, 16, 11);
  CpuDevice device(2, kernels());
  Values o = Values::random(3, kPlain, 12), q = Values::random(3, kGated, 13), out(3, 50);
  q.row(1)[kWidth + 2] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::uint32_t> faults(3);
  Arena arena(1 << 16);
  const LinearPart part = {.weight = &weight.view, .out = out.tensor()};
  device.gated_linear(shape_of(AttentionGate::sigmoid, no_norm, no_norm), o.tensor(), q.tensor(), part, arena,
                      faults.data());
  EXPECT_EQ(faults, (std::vector<std::uint32_t>{0, kFaultNonFinite, 0}));
}

}  // namespace
}  // namespace outrider
