// The gated delta net as a layer, against the formulas of models.md 3.3 in double.
#include "layers/gated_delta_net.h"

#include <gtest/gtest.h>

#include <cmath>

#include "device/delta_reference.h"

namespace outrider {
namespace {

constexpr std::int64_t kWidth = 64;
constexpr float kNormEps = 1e-6F;

Linear linear_of(PackedFixture weight) {
  Linear linear;
  linear.weight.view = weight.view;
  linear.weight.storage = std::move(weight.storage);
  return linear;
}

AlignedBuffer buffer_of(const Values& values) {
  AlignedBuffer buffer(values.data.size() * sizeof(float), MemoryPart::weights);
  std::copy(values.data.begin(), values.data.end(), buffer.as<float>().begin());
  return buffer;
}

struct LayerFixture {
  RecurrentLayout layout;
  DeltaParameters parameters;
  GatedDeltaNet layer;
  Norm norm;

  // Dense, or coded with a group width of its own for every projection.
  LayerFixture(const RecurrentLayout& shape, PackedKind kind, L2Epsilon l2 = L2Epsilon::hf)
      : layout(shape), parameters(DeltaParameters::random(shape, 1)) {
    const std::int64_t values = layout.value_heads * layout.value_width;
    const auto projection = [&](std::int64_t n, std::int64_t k, int bits, int group, std::uint32_t seed) {
      return linear_of(kind == PackedKind::dense ? PackedFixture::dense(n, k, seed)
                                                 : PackedFixture::affine(n, k, bits, group, seed));
    };
    layer.in_proj_qkv = projection(layout.channels(), kWidth, 4, 64, 11);
    layer.in_proj_z = projection(values, kWidth, 4, 32, 12);
    layer.in_proj_b = projection(layout.value_heads, kWidth, 8, 64, 13);
    layer.in_proj_a = linear_of(PackedFixture::dense(layout.value_heads, kWidth, 14));
    layer.out_proj = projection(kWidth, values, 4, 32, 15);
    parameters.l2_eps = l2_epsilon(l2, layout.key_width);
    layer.l2 = l2;
    layer.conv1d = conv_by_tap(buffer_of(parameters.conv), layout.taps);
    layer.A_log = buffer_of(parameters.a_log);
    layer.dt_bias = buffer_of(parameters.dt_bias);
    layer.norm = {buffer_of(parameters.norm), kNormEps};
    norm = {buffer_of(Values::random(1, kWidth, 16)), kNormEps};
  }

  void forward(Device& device, Tensor h, std::span<const BatchRow> rows) const {
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(h.rows));
    std::vector<std::uint32_t> faults(ids.size());
    Arena arena(layer.scratch_bytes(device, h.rows));
    layer.forward({device, arena, faults.data(), nullptr}, {ids, rows}, layout, 0, norm, h);
    EXPECT_EQ(faults, std::vector<std::uint32_t>(ids.size(), 0));
  }

  // x*W^T in double, with the weights as stored.
  static std::vector<double> multiply(const Linear& linear, const std::vector<double>& x) {
    std::vector<double> y;
    std::vector<float> row(x.size());
    for (std::int64_t o = 0; o < linear.n(); ++o) {
      kernel_table(Isa::portable)->unpack_row(linear.weight.view, o, row.data());
      y.push_back(0);
      for (std::size_t i = 0; i < x.size(); ++i) y.back() += static_cast<double>(row[i]) * x[i];
    }
    return y;
  }

  // The layer in double over the tokens of h, one row from its start.
  std::vector<std::vector<double>> reference(Values h, DeltaMistake mistake) const {
    DeltaReference delta(layout, parameters, mistake);
    std::vector<std::vector<double>> out;
    for (std::int64_t t = 0; t < h.rows; ++t) {
      std::vector<double> x(h.row(t), h.row(t) + kWidth);
      double sum = 0;
      for (const double value : x) sum += value * value;
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] *= static_cast<double>(norm.data()[i]) / std::sqrt(sum / kWidth + static_cast<double>(kNormEps));
      const auto token = delta.form(multiply(layer.in_proj_qkv, x).data(), multiply(layer.in_proj_a, x).data(),
                                    multiply(layer.in_proj_b, x).data());
      const auto o = delta.gate(delta.step(token), multiply(layer.in_proj_z, x).data(), static_cast<double>(kNormEps));
      out.push_back(multiply(layer.out_proj, o));
      for (std::int64_t i = 0; i < kWidth; ++i)
        out.back()[static_cast<std::size_t>(i)] += static_cast<double>(h.row(t)[i]);
    }
    return out;
  }
};

double largest_difference(Values& got, const std::vector<std::vector<double>>& want) {
  double worst = 0;
  for (std::int64_t t = 0; t < got.rows; ++t)
    for (std::int64_t i = 0; i < got.width; ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(got.row(t)[i]) -
                                        want[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)]));
  return worst;
}

constexpr std::int64_t kTokens = 24;
const RecurrentLayout kShapes[] = {{1, 2, 2, 16, 16, 4}, {1, 2, 4, 16, 32, 4}, {1, 2, 8, 32, 16, 4}};

// One step over a prompt from the row's start.
Values prompt(const LayerFixture& fixture, Device& device, const Values& h) {
  Values out = h;
  SlotsFixture slots(fixture.layout, 1);
  std::vector<std::byte*> blocks(1);
  const RecurrentStore store = {h.rows, slots.slot(0)};
  const BatchRow row = {0, h.rows, 0, 0, blocks, {nullptr, {&store, 1}}};
  fixture.forward(device, out.tensor(), {&row, 1});
  return out;
}

TEST(GatedDeltaNet, MatchesTheFormulasInDouble) {
  CpuDevice device(2, kernels());
  for (const RecurrentLayout& layout : kShapes)
    for (const L2Epsilon l2 : {L2Epsilon::hf, L2Epsilon::mlx})
      for (const PackedKind kind : {PackedKind::dense, PackedKind::affine}) {
        const LayerFixture fixture(layout, kind, l2);
        const Values h = Values::random(kTokens, kWidth, 20);
        Values got = prompt(fixture, device, h);
        const double bound = kind == PackedKind::dense ? 2e-5 : 2e-3;  // 16-bit codes of the inputs
        EXPECT_LT(largest_difference(got, fixture.reference(h, DeltaMistake::none)), bound);
      }
}

TEST(GatedDeltaNet, EveryListedMistakeIsFarOutsideTheBound) {
  CpuDevice device(2, kernels());
  const LayerFixture fixture(kShapes[1], PackedKind::dense);
  const Values h = Values::random(kTokens, kWidth, 20);
  Values got = prompt(fixture, device, h);
  for (const DeltaMistake mistake : kDeltaMistakes)
    EXPECT_GT(largest_difference(got, fixture.reference(h, mistake)), 1e-2) << static_cast<int>(mistake);
}

// Prompts cut by 1, 2, 3, 5 and verify windows that store every position: one set of bytes.
TEST(GatedDeltaNet, CutsOfAPromptGiveTheSameBytes) {
  CpuDevice device(2, kernels());
  for (const PackedKind kind : {PackedKind::dense, PackedKind::affine}) {
    const LayerFixture fixture(kShapes[1], kind);
    const Values h = Values::random(30, kWidth, 21);
    const Values expected = prompt(fixture, device, h);
    for (const std::int64_t cut : {1, 2, 3, 5}) {
      Values got = h;
      SlotsFixture slots(fixture.layout, 30);
      std::vector<std::byte*> blocks(1);
      for (std::int64_t begin = 0; begin < 30; begin += cut) {
        std::vector<RecurrentStore> stores;
        for (std::int64_t t = 0; t < cut; ++t) stores.push_back({t + 1, slots.slot(begin + t)});
        const BatchRow row = {0, cut, begin, 0, blocks, {begin == 0 ? nullptr : slots.slot(begin - 1), stores}};
        fixture.forward(device, got.tensor().slice(begin, cut), {&row, 1});
      }
      EXPECT_TRUE(same_bytes(got.data, expected.data)) << cut;
    }
  }
}

TEST(GatedDeltaNet, ThreadsAndInstructionSetsDoNotMatter) {
  const LayerFixture fixture(kShapes[2], PackedKind::affine);
  const Values h = Values::random(kTokens, kWidth, 22);
  CpuDevice twin(1, *kernel_table(Isa::portable));
  const Values expected = prompt(fixture, twin, h);
  for (const KernelTable* table : present_tables())
    for (const int threads : {1, 2, 7}) {
      CpuDevice device(threads, *table);
      EXPECT_TRUE(same_bytes(prompt(fixture, device, h).data, expected.data)) << device.name() << " " << threads;
    }
}

TEST(GatedDeltaNet, KernelsOfTheConvolutionAreTurnedByTap) {
  const Values by_channel = Values::random(5, 3, 23);
  const AlignedBuffer by_tap = conv_by_tap(buffer_of(by_channel), 3);
  for (std::size_t c = 0; c < 5; ++c)
    for (std::size_t j = 0; j < 3; ++j) EXPECT_EQ(by_tap.as<float>()[j * 5 + c], by_channel.data[c * 3 + j]);
}

}  // namespace
}  // namespace outrider
