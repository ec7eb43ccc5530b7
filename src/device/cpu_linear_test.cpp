#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/packed_fixture.h"

namespace outrider {
namespace {

constexpr std::int64_t kWidth = 256;

// The parts of a fused operation over the same input: every group width, codes of one and two planes, e2m1, a dense
// part, odd sizes.
struct Parts {
  std::vector<PackedFixture> weights;
  std::vector<Values> biases;
  Parts() {
    weights.push_back(PackedFixture::affine(97, kWidth, 4, 32, 1));
    weights.push_back(PackedFixture::affine(200, kWidth, 8, 64, 2));
    weights.push_back(PackedFixture::affine(15, kWidth, 4, 128, 3));
    weights.push_back(PackedFixture::dense(130, kWidth, 4));
    weights.push_back(PackedFixture::affine(96, kWidth, 8, 32, 5));
    weights.push_back(PackedFixture::e2m1(113, kWidth, 16, 6));
    weights.push_back(PackedFixture::affine(50, kWidth, 3, 64, 7));
    weights.push_back(PackedFixture::e2m1(97, kWidth, 32, 8));
    for (std::size_t p = 0; p < weights.size(); ++p)
      biases.push_back(Values::random(1, weights[p].view.n, static_cast<std::uint32_t>(10 + p)));
  }
  std::vector<LinearPart> bind(std::vector<Values>& outs, std::int64_t tokens) {
    std::vector<LinearPart> parts;
    outs.clear();
    outs.reserve(weights.size());
    for (std::size_t p = 0; p < weights.size(); ++p) {
      outs.emplace_back(tokens, weights[p].view.n);
      parts.push_back({&weights[p].view, p % 2 == 0 ? biases[p].data.data() : nullptr, nullptr, outs.back().tensor()});
    }
    return parts;
  }
};

// t of one weight for all rows by the portable table, called once for the whole matrix.
Values portable_product(const PackedMatrix& w, Values& x) {
  const KernelTable& kernels = *kernel_table(Isa::portable);
  Values y(x.rows, w.n);
  if (w.kind == PackedKind::dense) {
    kernels.dense_product(w, {0, w.strips()}, x.data.data(), x.width, {0, x.rows}, y.data.data(), w.n);
    return y;
  }
  std::vector<std::int16_t> codes(static_cast<std::size_t>(x.rows * w.k));
  std::vector<float> scales(static_cast<std::size_t>(x.rows * w.groups() * 2));
  std::vector<std::uint32_t> faults(static_cast<std::size_t>(x.rows));
  const CodedRows coded = {codes.data(), scales.data(), x.rows};
  kernels.code_rows(x.data.data(), x.width, w.k, w.group, {0, x.rows}, coded, faults.data());
  kernels.product(w, {0, w.strips()}, coded, {0, x.rows}, y.data.data(), w.n);
  return y;
}

TEST(CpuLinear, EqualsThePortableTwinForEveryIsaThreadCountAndRowCount) {
  Parts parts;
  Arena arena(std::size_t{4} << 20);
  for (const std::int64_t tokens : {1, 2, 3, 8, 17, 130}) {
    Values x = Values::random(tokens, kWidth, 20);
    std::vector<Values> expected;
    for (std::size_t p = 0; p < parts.weights.size(); ++p) {
      expected.push_back(portable_product(parts.weights[p].view, x));
      if (p % 2 == 0)
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t o = 0; o < expected[p].width; ++o)
            expected[p].row(t)[o] += parts.biases[p].data[static_cast<std::size_t>(o)];
    }
    for (const KernelTable* table : present_tables())
      for (const int threads : {1, 2, 7}) {
        CpuDevice device(threads, *table);
        std::vector<Values> outs;
        const std::vector<LinearPart> bound = parts.bind(outs, tokens);
        std::vector<std::uint32_t> faults(static_cast<std::size_t>(tokens));
        device.linear(x.tensor(), bound, arena, faults.data());
        for (std::size_t p = 0; p < outs.size(); ++p)
          EXPECT_TRUE(same_bytes(outs[p].data, expected[p].data))
              << device.name() << ", " << threads << " threads, " << tokens << " tokens, part " << p;
        EXPECT_EQ(std::count(faults.begin(), faults.end(), 0U), tokens);
      }
  }
}

TEST(CpuLinear, AddsTheResidualLastEvenWhereItIsTheOutput) {
  CpuDevice device(2, kernels());
  Arena arena(std::size_t{4} << 20);
  for (const bool quantized : {true, false})
    for (const std::int64_t tokens : {1, 3, 140}) {
      const PackedFixture w =
          quantized ? PackedFixture::affine(200, kWidth, 4, 64, 6) : PackedFixture::dense(200, kWidth, 6);
      Values x = Values::random(tokens, kWidth, 7), bias = Values::random(1, 200, 8);
      Values residual = Values::random(tokens, 200, 9), apart(tokens, 200), expected = portable_product(w.view, x);
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t o = 0; o < 200; ++o)
          expected.row(t)[o] = residual.row(t)[o] + (expected.row(t)[o] + bias.data[static_cast<std::size_t>(o)]);
      std::vector<std::uint32_t> faults(static_cast<std::size_t>(tokens));
      const Tensor r = residual.tensor();
      const LinearPart elsewhere = {&w.view, bias.data.data(), &r, apart.tensor()};
      device.linear(x.tensor(), {&elsewhere, 1}, arena, faults.data());
      EXPECT_TRUE(same_bytes(apart.data, expected.data)) << tokens;
      const LinearPart in_place = {&w.view, bias.data.data(), &r, r};
      device.linear(x.tensor(), {&in_place, 1}, arena, faults.data());
      EXPECT_TRUE(same_bytes(residual.data, expected.data)) << tokens;
    }
}

TEST(CpuLinear, FusedNormEqualsNormThenLinear) {
  Parts parts;
  Arena arena(std::size_t{4} << 20);
  Values w = Values::random(1, kWidth, 30);
  for (const KernelTable* table : present_tables())
    for (const int threads : {1, 2, 7})
      for (const std::int64_t tokens : {1, 5, 70}) {
        CpuDevice device(threads, *table);
        Values h = Values::random(tokens, kWidth, 31), x(tokens, kWidth);
        std::vector<std::uint32_t> faults(static_cast<std::size_t>(tokens));
        std::vector<Values> apart, fused;
        const std::vector<LinearPart> apart_parts = parts.bind(apart, tokens);
        device.rms_norm(h.tensor(), w.data.data(), 1e-5F, x.tensor());
        device.linear(x.tensor(), apart_parts, arena, faults.data());
        const std::vector<LinearPart> fused_parts = parts.bind(fused, tokens);
        device.norm_linear(h.tensor(), w.data.data(), 1e-5F, fused_parts, arena, faults.data());
        // Without the dense part threads reuse one row each: another path.
        std::vector<Values> coded_only;
        std::vector<LinearPart> coded_parts = parts.bind(coded_only, tokens);
        coded_parts.erase(coded_parts.begin() + 3);
        device.norm_linear(h.tensor(), w.data.data(), 1e-5F, coded_parts, arena, faults.data());
        for (std::size_t p = 0; p < apart.size(); ++p) {
          EXPECT_TRUE(same_bytes(apart[p].data, fused[p].data)) << device.name() << tokens << " part " << p;
          if (p == 3) continue;
          EXPECT_TRUE(same_bytes(apart[p].data, coded_only[p].data)) << device.name() << tokens << " part " << p;
        }
      }
}

TEST(CpuLinear, FusedSwigluEqualsSwigluThenLinear) {
  constexpr std::int64_t kInner = 4608 + 32;  // the last piece of a split token is no multiple of 128
  const PackedFixture w = PackedFixture::affine(100, kInner, 4, 32, 40), d = PackedFixture::dense(100, kInner, 41);
  Arena arena(std::size_t{8} << 20);
  for (const PackedMatrix* weight : {&w.view, &d.view})
    for (const int threads : {1, 2, 7})
      for (const std::int64_t tokens : {1, 3, 20}) {
        CpuDevice device(threads, kernels());
        Values gate = Values::random(tokens, kInner, 42), up = Values::random(tokens, kInner, 43), again = gate;
        Values apart(tokens, 100), fused(tokens, 100);
        std::vector<std::uint32_t> faults(static_cast<std::size_t>(tokens));
        const LinearPart one = {.weight = weight, .out = apart.tensor()},
                         two = {.weight = weight, .out = fused.tensor()};
        device.swiglu_linear(again.tensor(), up.tensor(), two, arena, faults.data());
        device.swiglu(gate.tensor(), up.tensor());
        device.linear(gate.tensor(), {&one, 1}, arena, faults.data());
        EXPECT_TRUE(same_bytes(apart.data, fused.data)) << threads << " threads, " << tokens << " tokens";
      }
}

TEST(CpuLinear, AFaultyTokenIsFlaggedAndChangesNoOther) {
  Parts parts;
  Arena arena(std::size_t{4} << 20);
  CpuDevice device(2, kernels());
  Values x = Values::random(5, kWidth, 50), broken = x;
  broken.row(3)[200] = std::numeric_limits<float>::quiet_NaN();
  broken.row(1)[0] = std::numeric_limits<float>::infinity();
  std::vector<Values> good, bad;
  std::vector<std::uint32_t> faults(5);
  const std::vector<LinearPart> good_parts = parts.bind(good, 5);
  device.linear(x.tensor(), good_parts, arena, faults.data());
  EXPECT_EQ(faults, std::vector<std::uint32_t>(5, 0));
  const std::vector<LinearPart> bad_parts = parts.bind(bad, 5);
  device.linear(broken.tensor(), bad_parts, arena, faults.data());
  EXPECT_EQ(faults, (std::vector<std::uint32_t>{0, kFaultNonFinite, 0, kFaultNonFinite, 0}));
  for (std::size_t p = 0; p < good.size(); ++p)
    for (const std::int64_t t : {0, 2, 4})
      EXPECT_EQ(std::memcmp(good[p].row(t), bad[p].row(t), static_cast<std::size_t>(good[p].width) * 4), 0) << t;
}

TEST(CpuLinear, ScratchPlanIsWhatTheOperationTakes) {
  Parts parts;
  std::uint32_t forms = 0;
  for (const PackedFixture& w : parts.weights) forms |= input_form(w.view);
  for (const int threads : {1, 3})
    for (const std::int64_t tokens : {1, 9, 100}) {
      CpuDevice device(threads, kernels());
      Values x = Values::random(tokens, kWidth, 60);
      std::vector<std::uint32_t> faults(static_cast<std::size_t>(tokens));
      std::vector<Values> outs;
      const std::vector<LinearPart> bound = parts.bind(outs, tokens);
      Arena plain(device.linear_scratch_bytes(LinearOperation::linear, tokens, kWidth, forms));
      device.linear(x.tensor(), bound, plain, faults.data());
      EXPECT_EQ(plain.peak(), plain.size());
      Arena normed(device.linear_scratch_bytes(LinearOperation::norm_linear, tokens, kWidth, forms));
      device.norm_linear(x.tensor(), x.data.data(), 1e-6F, bound, normed, faults.data());
      EXPECT_EQ(normed.peak(), normed.size());
    }
}

TEST(CpuLinearDeathTest, ChecksShapes) {
  CpuDevice device(1, kernels());
  Arena arena(1 << 16);
  const PackedFixture w = PackedFixture::affine(32, 64, 4, 32, 70);
  Values x(2, 96), out(2, 32), narrow(2, 16);
  std::uint32_t faults[2] = {};
  const LinearPart part = {.weight = &w.view, .out = out.tensor()}, cut = {.weight = &w.view, .out = narrow.tensor()};
  EXPECT_DEATH(device.linear(x.tensor(), {&part, 1}, arena, faults), "weight of 64 inputs, input of 96");
  EXPECT_DEATH(device.linear(x.tensor().columns(0, 64), {&cut, 1}, arena, faults), "expected \\[2, 32\\]");
}

}  // namespace
}  // namespace outrider
