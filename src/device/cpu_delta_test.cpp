#include <gtest/gtest.h>

#include <cmath>

#include "device/delta_reference.h"

namespace outrider {
namespace {

// Inputs of one row: raw p, a and b of its tokens.
struct Inputs {
  Values p, a, b;

  Inputs(const RecurrentLayout& layout, std::int64_t tokens, std::uint32_t seed)
      : p(Values::random(tokens, layout.channels(), seed)),
        a(Values::random(tokens, layout.value_heads, seed + 1)),
        b(Values::random(tokens, layout.value_heads, seed + 2)) {}
};

// A row's share of a step: which of its tokens, from which slot and log, stored and logged where.
struct Part {
  const Inputs* inputs;
  std::int64_t begin, end;
  const std::byte* read;
  std::vector<RecurrentStore> stores;
  RecurrentLog log = {};
  std::byte* write_log = nullptr;
};

// Runs one step over parts of rows; y [T, Hv*Dv].
Values run(const RecurrentLayout& layout, const DeltaParameters& parameters, Device& device,
           const std::vector<Part>& parts, std::int64_t layer = 0) {
  std::int64_t tokens = 0;
  for (const Part& part : parts) tokens += part.end - part.begin;
  Values p(tokens, layout.channels()), a(tokens, layout.value_heads), b(tokens, layout.value_heads);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  std::vector<std::byte*> blocks(64);
  std::vector<BatchRow> rows;
  std::int64_t at = 0;
  for (const Part& part : parts) {
    Inputs in = *part.inputs;
    for (std::int64_t t = part.begin; t < part.end; ++t) {
      std::copy_n(in.p.row(t), p.width, p.row(at + t - part.begin));
      std::copy_n(in.a.row(t), a.width, a.row(at + t - part.begin));
      std::copy_n(in.b.row(t), b.width, b.row(at + t - part.begin));
    }
    rows.push_back(
        {at, at + part.end - part.begin, part.begin, 0, blocks, {part.read, part.stores, part.log, part.write_log}});
    at += part.end - part.begin;
  }
  Values conv = parameters.conv_by_tap();
  const DeltaShape shape = {conv.data.data(), parameters.a_log.data.data(), parameters.dt_bias.data.data(),
                            parameters.l2_eps};
  device.gated_delta(shape, {ids, rows}, layout, layer, p.tensor(), a.tensor(), b.tensor());
  Values y(tokens, layout.value_heads * layout.value_width);
  for (std::int64_t t = 0; t < tokens; ++t) std::copy_n(p.row(t) + p.width - y.width, y.width, y.row(t));
  return y;
}

std::vector<double> doubles(const float* x, std::int64_t n) { return {x, x + n}; }

// The reference's y of tokens [0, count), which moves its state.
std::vector<std::vector<double>> reference_y(DeltaReference& reference, Inputs in, std::int64_t count) {
  std::vector<std::vector<double>> y;
  for (std::int64_t t = 0; t < count; ++t)
    y.push_back(
        reference.step(reference.form(doubles(in.p.row(t), in.p.width).data(), doubles(in.a.row(t), in.a.width).data(),
                                      doubles(in.b.row(t), in.b.width).data())));
  return y;
}

double largest_difference(Values& got, const std::vector<std::vector<double>>& want) {
  double worst = 0;
  for (std::size_t t = 0; t < want.size(); ++t)
    for (std::size_t i = 0; i < want[t].size(); ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(got.row(static_cast<std::int64_t>(t))[i]) - want[t][i]));
  return worst;
}

double largest_state_difference(const RecurrentLayout& layout, const std::byte* slot, std::int64_t layer,
                                const DeltaReference& want) {
  const auto* state = reinterpret_cast<const float*>(slot + layout.state_offset(layer));
  const auto* window = reinterpret_cast<const float*>(slot + layout.window_offset(layer));
  double worst = 0;
  for (std::size_t i = 0; i < want.state.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(state[i]) - want.state[i]));
  for (std::size_t i = 0; i < want.window.size(); ++i)
    if (static_cast<double>(window[i]) != want.window[i]) worst = 1e9;
  return worst;
}

const RecurrentLayout kShapes[] = {{1, 2, 2, 16, 16, 4}, {1, 2, 4, 16, 16, 4}, {1, 2, 8, 16, 16, 4},
                                   {1, 1, 3, 12, 20, 3}, {1, 2, 4, 64, 64, 4}, {1, 1, 2, 128, 128, 4},
                                   {1, 3, 3, 5, 7, 2},   {1, 1, 1, 16, 100, 1}};

TEST(GatedDelta, MatchesANaiveProgramInDouble) {
  CpuDevice device(2, kernels());
  for (const RecurrentLayout& layout : kShapes)
    for (const float eps : {1e-6F, static_cast<float>(layout.key_width) * 1e-6F}) {
      DeltaParameters parameters = DeltaParameters::random(layout, 1);
      parameters.l2_eps = eps;
      const Inputs in(layout, 40, 5);
      SlotsFixture slots(layout, 1);
      DeltaReference reference(layout, parameters);
      const auto want = reference_y(reference, in, 40);
      Values got = run(layout, parameters, device, {{&in, 0, 40, nullptr, {{40, slots.slot(0)}}}});
      EXPECT_LT(largest_difference(got, want), 5e-6) << layout.key_width << "x" << layout.value_width;
      EXPECT_LT(largest_state_difference(layout, slots.slot(0), 0, reference), 5e-6);
    }
}

// Any cut of a row into steps, and any choice of stored positions, gives the same bytes of y and of every state.
TEST(GatedDelta, CutsAndStoresOfARowDoNotMatter) {
  constexpr std::int64_t kTokens = 30;
  CpuDevice device(2, kernels());
  for (const RecurrentLayout& layout : kShapes) {
    const DeltaParameters parameters = DeltaParameters::random(layout, 11);
    const Inputs in(layout, kTokens, 15);
    SlotsFixture every(layout, kTokens);
    Part whole = {&in, 0, kTokens, nullptr, {}};
    for (std::int64_t t = 0; t < kTokens; ++t) whole.stores.push_back({t + 1, every.slot(t)});
    Values expected = run(layout, parameters, device, {whole});
    for (const std::int64_t cut : {1, 2, 3, 5, 30}) {
      SlotsFixture ends(layout, kTokens);
      const std::byte* read = nullptr;
      for (std::int64_t begin = 0; begin < kTokens; begin += cut) {
        std::byte* const end = ends.slot(begin / cut);
        Values got = run(layout, parameters, device, {{&in, begin, begin + cut, read, {{cut, end}}}});
        EXPECT_EQ(std::memcmp(got.data.data(), expected.row(begin), got.data.size() * 4), 0) << cut << " " << begin;
        EXPECT_EQ(std::memcmp(end, every.slot(begin + cut - 1), layout.slot_bytes()), 0) << cut << " " << begin;
        read = end;
      }
    }
  }
}

TEST(GatedDelta, ThreadsInstructionSetsAndNeighboursDoNotMatter) {
  for (const RecurrentLayout& layout : kShapes) {
    const DeltaParameters parameters = DeltaParameters::random(layout, 21);
    const Inputs prompt(layout, 70, 25), window(layout, 9, 26), decode(layout, 1, 27);
    SlotsFixture before(layout, 1);
    CpuDevice twin(1, *kernel_table(Isa::portable));
    run(layout, parameters, twin, {{&window, 0, 5, nullptr, {{5, before.slot(0)}}}});
    // Each row alone, by the portable twin.
    SlotsFixture alone(layout, 6);
    const auto parts_of = [&](SlotsFixture& s) {
      return std::vector<Part>{{&prompt, 0, 70, nullptr, {{64, s.slot(0)}, {70, s.slot(1)}}},
                               {&window, 5, 8, before.slot(0), {{1, s.slot(2)}, {2, s.slot(3)}, {3, s.slot(4)}}},
                               {&decode, 0, 1, nullptr, {{1, s.slot(5)}}}};
    };
    std::vector<float> expected;
    for (const Part& part : parts_of(alone)) {
      const Values y = run(layout, parameters, twin, {part});
      expected.insert(expected.end(), y.data.begin(), y.data.end());
    }
    for (const KernelTable* table : present_tables())
      for (const int threads : {1, 2, 7}) {
        CpuDevice device(threads, *table);
        SlotsFixture slots(layout, 6);
        const Values y = run(layout, parameters, device, parts_of(slots));
        EXPECT_TRUE(same_bytes(y.data, expected)) << device.name() << " " << threads << " " << layout.value_width;
        for (std::int64_t s = 0; s < 6; ++s)
          EXPECT_EQ(std::memcmp(slots.slot(s), alone.slot(s), layout.slot_bytes()), 0) << device.name() << " " << s;
      }
  }
}

// Verify windows that keep a state and a log, of which any number of tokens stands: y of every window, and the state
// that a later step stores, are those of one pass over the row. Some windows store a token in their middle, too, from
// where on the log then counts.
TEST(GatedDelta, WindowsWithLogsGiveTheBytesOfOnePass) {
  constexpr std::int64_t kTokens = 24, kLayer = 1, kMost = 5;
  std::uint32_t random = 1;
  const auto below = [&](std::int64_t n) {
    random = random * 1664525U + 1013904223U;
    return static_cast<std::int64_t>(random >> 8) % n;
  };
  for (RecurrentLayout layout : kShapes) {
    layout.layers = 3;
    const DeltaParameters parameters = DeltaParameters::random(layout, 101);
    const Inputs in(layout, kTokens + kMost, 105);
    SlotsFixture every(layout, kTokens + kMost);
    Part whole = {&in, 0, kTokens + kMost, nullptr, {}};
    for (std::int64_t t = 0; t < kTokens + kMost; ++t) whole.stores.push_back({t + 1, every.slot(t)});
    CpuDevice twin(1, *kernel_table(Isa::portable));
    Values expected = run(layout, parameters, twin, {whole}, kLayer);
    const std::size_t layer_bytes = static_cast<std::size_t>(layout.layer_floats()) * sizeof(float);
    for (const KernelTable* table : present_tables())
      for (const int threads : {1, 3}) {
        CpuDevice device(threads, *table);
        const std::byte* read = nullptr;
        RecurrentLog log;
        SlotsFixture slots(layout, 2 * kTokens);
        std::vector<AlignedBuffer> logs;
        std::int64_t done = 0, used = 0;
        while (done < kTokens) {
          const std::int64_t tokens = 1 + below(kMost), kept = 1 + below(tokens);
          std::byte* const stored = slots.slot(used++);
          std::byte* base = stored;
          std::int64_t first = 0;  // of the log, once the window stands
          Part part = {&in, done, done + tokens, read, {{1, stored}}, log};
          if (tokens > 2 && below(2) == 0) {
            const std::int64_t middle = 2 + below(tokens - 1);
            part.stores.push_back({middle, slots.slot(used++)});
            if (kept >= middle) base = part.stores.back().slot, first = middle - 1;
          }
          logs.emplace_back(layout.log_bytes(kMost - 1), MemoryPart::recurrent);
          std::memset(logs.back().data(), 0xff, logs.back().size());
          part.write_log = logs.back().data();
          Values got = run(layout, parameters, device, {part}, kLayer);
          ASSERT_EQ(std::memcmp(got.data.data(), expected.row(done), got.data.size() * 4), 0) << device.name();
          for (const RecurrentStore& store : part.stores)
            ASSERT_EQ(std::memcmp(store.slot + layout.state_offset(kLayer),
                                  every.slot(done + store.tokens - 1) + layout.state_offset(kLayer), layer_bytes),
                      0)
                << device.name() << " after " << done + store.tokens;
          read = base;
          log = {logs.back().data(), first, kept - 1 - first};
          done += kept;
        }
      }
  }
}

TEST(GatedDelta, StatesTooLargeForTheCachesAreTheSameBytes) {
  const RecurrentLayout layout = {64, 1, 2, 128, 128, 4};
  ASSERT_GE(layout.slot_bytes(), std::size_t{8} << 20);  // from here on states are streamed
  const DeltaParameters parameters = DeltaParameters::random(layout, 61);
  const Inputs in(layout, 5, 65);
  SlotsFixture before(layout, 1), alone(layout, 4);
  CpuDevice twin(1, *kernel_table(Isa::portable));
  run(layout, parameters, twin, {{&in, 0, 1, nullptr, {{1, before.slot(0)}}}}, 63);
  const auto part_of = [&](SlotsFixture& s) {
    return Part{&in, 1, 4, before.slot(0), {{1, s.slot(0)}, {2, s.slot(1)}, {3, s.slot(2)}}};
  };
  const auto decode_of = [&](SlotsFixture& s) { return Part{&in, 4, 5, s.slot(2), {{1, s.slot(3)}}}; };
  const Values window = run(layout, parameters, twin, {part_of(alone)}, 63);
  const Values decode = run(layout, parameters, twin, {decode_of(alone)}, 63);
  for (const KernelTable* table : present_tables()) {
    CpuDevice device(2, *table);
    SlotsFixture slots(layout, 4);
    EXPECT_TRUE(same_bytes(run(layout, parameters, device, {part_of(slots)}, 63).data, window.data)) << device.name();
    EXPECT_TRUE(same_bytes(run(layout, parameters, device, {decode_of(slots)}, 63).data, decode.data)) << device.name();
    for (std::int64_t s = 0; s < 4; ++s)
      EXPECT_EQ(std::memcmp(slots.slot(s), alone.slot(s), layout.slot_bytes()), 0) << device.name() << " " << s;
  }
}

TEST(GatedDelta, LayersHaveTheirOwnState) {
  RecurrentLayout layout = {3, 2, 4, 16, 24, 4};
  const DeltaParameters parameters = DeltaParameters::random(layout, 31);
  const Inputs in(layout, 12, 35), other(layout, 12, 36);
  CpuDevice device(2, kernels());
  SlotsFixture slots(layout, 2);
  run(layout, parameters, device, {{&other, 0, 5, nullptr, {{5, slots.slot(0)}}}}, 0);
  run(layout, parameters, device, {{&in, 0, 5, nullptr, {{5, slots.slot(0)}}}}, 1);
  run(layout, parameters, device, {{&other, 0, 5, nullptr, {{5, slots.slot(0)}}}}, 2);
  run(layout, parameters, device, {{&in, 5, 12, slots.slot(0), {{7, slots.slot(1)}}}}, 1);
  DeltaReference reference(layout, parameters);
  reference_y(reference, in, 12);
  EXPECT_LT(largest_state_difference(layout, slots.slot(1), 1, reference), 5e-6);
}

TEST(GatedDelta, TheReadSlotIsNeverWritten) {
  const RecurrentLayout layout = {1, 2, 4, 16, 16, 4};
  const DeltaParameters parameters = DeltaParameters::random(layout, 41);
  const Inputs in(layout, 10, 45);
  CpuDevice device(2, kernels());
  SlotsFixture slots(layout, 3);
  run(layout, parameters, device, {{&in, 0, 4, nullptr, {{4, slots.slot(0)}}}});
  const std::vector<std::byte> before(slots.slot(0), slots.slot(0) + layout.slot_bytes());
  run(layout, parameters, device, {{&in, 4, 10, slots.slot(0), {{2, slots.slot(1)}, {6, slots.slot(2)}}}});
  EXPECT_EQ(std::memcmp(before.data(), slots.slot(0), before.size()), 0);
}

// g underflows to 0, b goes to 0 and to 1, a key head is zero: finite, and what the formulas say.
TEST(GatedDelta, ExtremesOfTheGatesAndAZeroKeyHead) {
  const RecurrentLayout layout = {1, 2, 4, 16, 16, 4};
  for (const float eps : {1e-6F, 16e-6F}) {
    DeltaParameters parameters = DeltaParameters::random(layout, 51);
    parameters.l2_eps = eps;
    parameters.a_log.data = {8.0F, -20.0F, 0.5F, 0.5F};
    Inputs in(layout, 20, 55);
    for (std::int64_t t = 0; t < 20; ++t) {
      in.a.row(t)[2] = 300.0F;  // softplus is x itself
      in.a.row(t)[3] = -300.0F;
      in.b.row(t)[0] = t % 2 == 0 ? 200.0F : -200.0F;
      in.b.row(t)[1] = t % 2 == 0 ? 30.0F : -30.0F;
      if (t < 10) std::fill_n(in.p.row(t) + 2 * 16, 16, 0.0F);  // the first key head of the first tokens
    }
    SlotsFixture slots(layout, 1);
    DeltaReference reference(layout, parameters);
    const auto want = reference_y(reference, in, 20);
    CpuDevice device(2, kernels());
    Values got = run(layout, parameters, device, {{&in, 0, 20, nullptr, {{20, slots.slot(0)}}}});
    for (const float value : got.data) ASSERT_TRUE(std::isfinite(value));
    EXPECT_LT(largest_difference(got, want), 2e-5);
    EXPECT_LT(largest_state_difference(layout, slots.slot(0), 0, reference), 2e-5);
  }
}

TEST(GatedDelta, TheTwoEpsilonsDifferOnSmallKeys) {
  const RecurrentLayout layout = {1, 1, 1, 16, 16, 4};
  DeltaParameters hf = DeltaParameters::random(layout, 61), mlx = hf;
  mlx.l2_eps = 16e-6F;
  Inputs in(layout, 8, 65);
  for (float& value : in.p.data) value *= 0.01F;
  CpuDevice device(1, kernels());
  SlotsFixture slots(layout, 2);
  const Values one = run(layout, hf, device, {{&in, 0, 8, nullptr, {{8, slots.slot(0)}}}});
  const Values two = run(layout, mlx, device, {{&in, 0, 8, nullptr, {{8, slots.slot(1)}}}});
  EXPECT_FALSE(same_bytes(one.data, two.data));
}

// models.md 3.4 in double, from the state S_0 the step form stored: y of a chunk, as training computes it.
TEST(GatedDelta, StepFormEqualsTheChunkForm) {
  const RecurrentLayout layout = {1, 2, 4, 32, 16, 4};
  constexpr std::int64_t kBefore = 9, kChunk = 64;
  const DeltaParameters parameters = DeltaParameters::random(layout, 71);
  Inputs in(layout, kBefore + kChunk, 75);
  CpuDevice device(2, kernels());
  SlotsFixture slots(layout, 2);
  run(layout, parameters, device, {{&in, 0, kBefore, nullptr, {{kBefore, slots.slot(0)}}}});
  Values got =
      run(layout, parameters, device, {{&in, kBefore, kBefore + kChunk, slots.slot(0), {{kChunk, slots.slot(1)}}}});
  DeltaReference reference(layout, parameters);
  std::vector<DeltaReference::Token> tokens;
  for (std::int64_t t = 0; t < kBefore + kChunk; ++t) {
    tokens.push_back(reference.form(doubles(in.p.row(t), in.p.width).data(), doubles(in.a.row(t), in.a.width).data(),
                                    doubles(in.b.row(t), in.b.width).data()));
    if (t < kBefore) reference.step(tokens.back());
  }
  tokens.erase(tokens.begin(), tokens.begin() + kBefore);
  const std::int64_t keys = layout.key_width, values = layout.value_width;
  double worst = 0;
  for (std::int64_t h = 0; h < layout.value_heads; ++h)
    for (std::int64_t v = 0; v < values; ++v) {
      const std::int64_t first = reference.key_head(h) * keys;
      const auto at = static_cast<std::size_t>(h);
      const auto dot = [&](const std::vector<double>& a, const std::vector<double>& b) {
        double sum = 0;
        for (std::int64_t i = first; i < first + keys; ++i)
          sum += a[static_cast<std::size_t>(i)] * b[static_cast<std::size_t>(i)];
        return sum;
      };
      const auto s0 = [&](const std::vector<double>& x) {
        double sum = 0;
        for (std::int64_t i = 0; i < keys; ++i)
          sum += reference.state[static_cast<std::size_t>((h * keys + i) * values + v)] *
                 x[static_cast<std::size_t>(first + i)];
        return sum;
      };
      double ln_gamma = 0;
      std::vector<double> gammas, deltas;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        gammas.push_back(ln_gamma += tokens[i].ln_g[at]);
        double sum = tokens[i].v[static_cast<std::size_t>(h * values + v)] - std::exp(ln_gamma) * s0(tokens[i].k);
        for (std::size_t j = 0; j < i; ++j)
          sum -= std::exp(ln_gamma - gammas[j]) * dot(tokens[i].k, tokens[j].k) * deltas[j];
        deltas.push_back(tokens[i].b[at] * sum);
        double y = std::exp(ln_gamma) * s0(tokens[i].q);
        for (std::size_t j = 0; j <= i; ++j)
          y += std::exp(ln_gamma - gammas[j]) * dot(tokens[j].k, tokens[i].q) * deltas[j];
        worst =
            std::max(worst, std::fabs(y - static_cast<double>(got.row(static_cast<std::int64_t>(i))[h * values + v])));
      }
    }
  EXPECT_LT(worst, 1e-5);
}

// Heads of 24, 48 and 160 columns: pieces are whole heads, whatever the unit of columns is.
TEST(GatedDelta, FusedGatedNormEqualsGatedNormThenLinear) {
  for (const auto& [width, heads] : {std::pair<std::int64_t, std::int64_t>{24, 12}, {128, 9}, {160, 8}}) {
    const std::int64_t columns = width * heads;
    const PackedFixture dense = PackedFixture::dense(50, columns, 80),
                        coded = PackedFixture::affine(50, columns, 4, 32, 81);
    const Values w = Values::random(1, width, 82);
    for (const PackedMatrix* weight : {&dense.view, &coded.view})
      for (const int threads : {1, 2, 7})
        for (const std::int64_t tokens : {1, 3, 20}) {
          CpuDevice device(threads, kernels());
          Values y = Values::random(tokens, columns, 83), z = Values::random(tokens, columns, 84), x = z;
          for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t h = 0; h < heads; ++h)
              kernel_table(Isa::portable)
                  ->gated_norm(y.row(t) + h * width, z.row(t) + h * width, w.data.data(), width, 1e-6F,
                               x.row(t) + h * width);
          Values apart(tokens, 50), fused(tokens, 50);
          std::vector<std::uint32_t> faults(static_cast<std::size_t>(tokens));
          Arena arena(
              device.linear_scratch_bytes(LinearOperation::gated_norm_linear, tokens, columns, input_form(*weight)));
          const LinearPart one = {.weight = weight, .out = apart.tensor()};
          const LinearPart two = {.weight = weight, .out = fused.tensor()};
          device.linear(x.tensor(), {&one, 1}, arena, faults.data());
          device.gated_norm_linear(y.tensor(), z.tensor(), w.data.data(), width, 1e-6F, two, arena, faults.data());
          EXPECT_TRUE(same_bytes(apart.data, fused.data)) << width << " " << threads << " " << tokens;
        }
  }
}

TEST(GatedDelta, AFaultyTokenIsFlaggedByTheProjectionAndSpoilsNoNeighbour) {
  const RecurrentLayout layout = {1, 2, 4, 16, 16, 4};
  const DeltaParameters parameters = DeltaParameters::random(layout, 91);
  const Inputs good(layout, 3, 95);
  Inputs bad = good;
  bad.p.row(1)[100] = std::numeric_limits<float>::quiet_NaN();
  CpuDevice device(2, kernels());
  SlotsFixture slots(layout, 2);
  const PackedFixture out = PackedFixture::affine(32, 64, 4, 32, 96);
  Values y = run(layout, parameters, device,
                 {{&bad, 0, 3, nullptr, {{3, slots.slot(0)}}}, {&good, 0, 3, nullptr, {{3, slots.slot(1)}}}});
  Values z = Values::random(6, 64, 97), product(6, 32);
  std::vector<std::uint32_t> faults(6);
  Arena arena(1 << 16);
  const LinearPart part = {.weight = &out.view, .out = product.tensor()};
  device.gated_norm_linear(y.tensor(), z.tensor(), parameters.norm.data.data(), 16, 1e-6F, part, arena, faults.data());
  EXPECT_EQ(faults, (std::vector<std::uint32_t>{0, kFaultNonFinite, kFaultNonFinite, 0, 0, 0}));
}

TEST(GatedDeltaDeathTest, ChecksStores) {
  const RecurrentLayout layout = {1, 2, 4, 16, 16, 4};
  const DeltaParameters parameters = DeltaParameters::random(layout, 91);
  const Inputs in(layout, 3, 95);
  CpuDevice device(1, kernels());
  SlotsFixture slots(layout, 2);
  EXPECT_DEATH(run(layout, parameters, device, {{&in, 0, 3, nullptr, {}}}), "after 0 of 3 tokens");
  EXPECT_DEATH(run(layout, parameters, device, {{&in, 0, 3, nullptr, {{2, slots.slot(0)}}}}), "after 2 of 3 tokens");
  EXPECT_DEATH(run(layout, parameters, device,
                   {{&in, 0, 3, nullptr, {{2, slots.slot(0)}, {2, slots.slot(1)}, {3, slots.slot(1)}}}}),
               "after 2 tokens follows one after 2");
  EXPECT_DEATH(run(layout, parameters, device, {{&in, 1, 3, slots.slot(0), {{2, slots.slot(0)}}}}), "slot of its own");
  AlignedBuffer log(layout.log_bytes(2), MemoryPart::recurrent);
  EXPECT_DEATH(run(layout, parameters, device, {{&in, 0, 3, nullptr, {{2, slots.slot(0)}}, {}, log.data()}}),
               "a log behind stores after 2 to 2 of 3 tokens");
  EXPECT_DEATH(run(layout, parameters, device, {{&in, 1, 3, nullptr, {{2, slots.slot(0)}}, {log.data(), 0, 1}}}),
               "a log of 1 tokens behind no state");
}

}  // namespace
}  // namespace outrider
