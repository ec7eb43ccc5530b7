#include "weights/pack.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <thread>

#include "base/error.h"
#include "weights/quantized.h"
#include "weights/test_files.h"

namespace outrider {
namespace {

// A matrix in MLX form with distinct codes, scales and biases.
struct Sample {
  AffineMatrix matrix;
  std::vector<std::uint8_t> codes;
  std::vector<std::byte> weight, scales, biases;
};

Sample sample(int bits, int group, FloatType type, std::int64_t n, std::int64_t k) {
  Sample s;
  s.codes.resize(static_cast<std::size_t>(n * k));
  for (std::size_t i = 0; i < s.codes.size(); ++i)
    s.codes[i] = static_cast<std::uint8_t>((i * 2654435761u >> 7) & ((1u << bits) - 1));
  const auto row = static_cast<std::size_t>(code_bytes(k, bits));
  s.weight.resize(static_cast<std::size_t>(n) * row);
  for (std::int64_t r = 0; r < n; ++r)
    pack_codes(std::span(s.codes).subspan(static_cast<std::size_t>(r * k), static_cast<std::size_t>(k)), bits,
               s.weight.data() + static_cast<std::size_t>(r) * row);
  const auto groups = static_cast<std::size_t>(n * k / group);
  s.scales.resize(groups * size_of(type));
  s.biases.resize(s.scales.size());
  for (std::size_t g = 0; g < groups; ++g) {
    store_float(s.scales.data() + g * size_of(type), type, test_value(1, g));
    store_float(s.biases.data() + g * size_of(type), type, test_value(2, g));
  }
  s.matrix = {bits, group, type, n, k, s.weight.data(), s.scales.data(), s.biases.data()};
  return s;
}

TEST(Pack, KeepsCodesScalesAndBiasesOfEveryWidthGroupAndType) {
  for (int bits = 1; bits <= 8; ++bits)
    for (const int group : {32, 64, 128})
      for (const FloatType type : {FloatType::f32, FloatType::f16, FloatType::bf16})
        for (const std::int64_t n : {1, 16, 97, 113}) {
          const Sample s = sample(bits, group, type, n, 256);
          const PackedWeight packed = pack_affine(s.matrix);
          EXPECT_EQ(packed.view.bits, bits == 1 ? 2 : bits == 7 ? 8 : bits);
          ASSERT_EQ(packed.view.bytes(), packed.storage.size());
          const Unpacked back = unpack(packed.view);
          ASSERT_EQ(back.codes, s.codes) << bits << " " << group << " " << n;
          for (std::size_t g = 0; g < back.scales.size(); ++g) {
            ASSERT_EQ(back.scales[g], load_float(s.scales.data() + g * size_of(type), type));
            ASSERT_EQ(back.biases[g], load_float(s.biases.data() + g * size_of(type), type));
          }
        }
}

// The layout of numerics.md 3, byte by byte, for every word of one group: 3, 5 and 6 bits are two planes of words, low
// bits first.
TEST(Pack, PutsCodesAtTheBitsOfTheSpecification) {
  for (const auto& [bits, low] : {std::pair{2, 2}, {3, 2}, {4, 4}, {5, 4}, {6, 4}, {8, 8}}) {
    const Sample s = sample(bits, 32, FloatType::f32, 100, 64);
    const PackedWeight packed = pack_affine(s.matrix);
    const std::int64_t row = 99, panel = 6, lane = 3, group = 1;  // the second strip has one panel
    const std::int64_t block = 2 * 16 * 4 + 32 * bits / 32 * 16 * 4;
    const std::byte* at = packed.view.data + (6 * 2 + group) * block;  // 6 panels of 2 groups, then group 1 of panel 6
    ASSERT_EQ(row, panel * 16 + lane);
    for (std::int64_t i = 0; i < bits; ++i) {
      const int b = i < low ? low : bits - low, shift = i < low ? 0 : low;
      const std::int64_t first = 32 / b * (i < low ? i : i - low);
      std::uint32_t expected = 0;
      for (int p = 0; p < 16 / b; ++p)
        for (int e = 0; e < 2; ++e) {
          const std::uint32_t code = s.codes[static_cast<std::size_t>(row * 64 + group * 32 + first + 2 * p + e)];
          expected |= (code >> shift & ((1u << b) - 1)) << (b * p + 16 * e);
        }
      std::uint32_t word;
      std::memcpy(&word, at + 2 * 16 * 4 + (i * 16 + lane) * 4, 4);
      EXPECT_EQ(word, expected) << bits << " bits, word " << i;
    }
  }
}

// mxfp4 and nvfp4 with every code and every scale byte that is a number.
struct E2m1Sample {
  E2m1Matrix matrix;
  std::vector<std::uint8_t> codes;
  std::vector<std::byte> weight, scales;
};

E2m1Sample e2m1_sample(Fp4Mode mode, std::int64_t n, std::int64_t k) {
  E2m1Sample s;
  s.codes.resize(static_cast<std::size_t>(n * k));
  for (std::size_t i = 0; i < s.codes.size(); ++i) s.codes[i] = static_cast<std::uint8_t>(i * 2654435761u >> 7 & 15);
  s.weight.resize(s.codes.size() / 2);
  pack_codes(s.codes, 4, s.weight.data());
  s.scales.resize(static_cast<std::size_t>(n * k / group_of(mode)));
  for (std::size_t g = 0; g < s.scales.size(); ++g) {
    const auto byte = static_cast<std::uint8_t>(g * 37);
    s.scales[g] = std::byte{mode == Fp4Mode::mxfp4  ? static_cast<std::uint8_t>(byte % 252)
                            : (byte & 0x7f) == 0x7f ? std::uint8_t{0x38}
                                                    : byte};
  }
  s.matrix = {{mode, std::nullopt}, n, k, s.weight.data(), s.scales.data()};
  return s;
}

TEST(Pack, KeepsCodesAndHalvesScalesOfMxfp4AndNvfp4) {
  for (const Fp4Mode mode : {Fp4Mode::mxfp4, Fp4Mode::nvfp4})
    for (const std::int64_t n : {1, 16, 97, 113}) {
      const E2m1Sample s = e2m1_sample(mode, n, 96);
      const PackedWeight packed = pack(rows_of(s.matrix), Precision::packed, {});
      EXPECT_EQ(packed.view.kind, PackedKind::e2m1);
      EXPECT_EQ(packed.view.scale_type, FloatType::f32);
      ASSERT_EQ(packed.view.bytes(), packed.storage.size());
      ASSERT_EQ(packed.view.bytes(), static_cast<std::size_t>((n + 15) / 16 * 16 * (96 / 2 + 96 / group_of(mode) * 4)));
      const Unpacked back = unpack(packed.view);
      ASSERT_EQ(back.codes, s.codes);
      EXPECT_TRUE(back.biases.empty());
      for (std::size_t g = 0; g < back.scales.size(); ++g)
        ASSERT_EQ(back.scales[g], s.matrix.fp4.halved(std::to_integer<std::uint8_t>(s.scales[g])));
      // The rows after the last: scale 0 and code 0.
      for (std::int64_t lane = n % 16; lane != 0 && lane < 16; ++lane) {
        const std::byte* block = packed.view.data + packed.view.offset(n / 96, 0, n % 96 / 16);
        EXPECT_EQ(load_float(block + lane * 4, FloatType::f32), 0.0f);
        EXPECT_EQ(load_float(block + 64 + lane * 4, FloatType::f32), 0.0f);
      }
    }
}

TEST(Pack, RowsBeyondTheLastAreZero) {
  const Sample s = sample(8, 32, FloatType::f16, 3, 32);
  const PackedWeight packed = pack_affine(s.matrix);
  const std::byte* block = packed.view.data;
  for (std::int64_t lane = 3; lane < 16; ++lane) {
    EXPECT_EQ(load_float(block + lane * 2, FloatType::f16), 0.0f);
    EXPECT_EQ(load_float(block + (16 + lane) * 2, FloatType::f16), 0.0f);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(load_float(block + 64 + (i * 16 + lane) * 4, FloatType::f32), 0.0f);
  }
}

TEST(Pack, DenseKeepsItsTypeAndBits) {
  for (const FloatType type : {FloatType::f32, FloatType::f16, FloatType::bf16})
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {17, 5}, {130, 33}}) {
      std::vector<std::byte> values(static_cast<std::size_t>(n * k) * size_of(type));
      for (std::size_t i = 0; i < static_cast<std::size_t>(n * k); ++i)
        store_float(values.data() + i * size_of(type), type, test_value(5, i));
      const PackedWeight packed = pack_dense({type, n, k, values.data()});
      const Unpacked back = unpack(packed.view);
      for (std::size_t i = 0; i < back.values.size(); ++i)
        ASSERT_EQ(back.values[i], load_float(values.data() + i * size_of(type), type));
    }
}

TEST(Pack, F32PrecisionHoldsTheFmaOfEachCode) {
  const Sample s = sample(5, 32, FloatType::bf16, 50, 96);
  const PackedWeight packed = pack(rows_of(s.matrix), Precision::f32, {});
  EXPECT_EQ(packed.view.kind, PackedKind::dense);
  const Unpacked back = unpack(packed.view);
  for (std::size_t i = 0; i < s.codes.size(); ++i) {
    const float scale = load_float(s.scales.data() + i / 32 * 2, FloatType::bf16),
                bias = load_float(s.biases.data() + i / 32 * 2, FloatType::bf16);
    ASSERT_EQ(back.values[i], std::fma(static_cast<float>(s.codes[i]), scale, bias));
  }
}

TEST(Pack, GivesTheSameBytesOnAnyNumberOfThreads) {
  const Sample s = sample(8, 64, FloatType::f16, 4000, 1024);
  const PackedWeight one = pack_affine(s.matrix);
  int tasks = 0;
  const ParallelFor threads = [&](std::int64_t count, const std::function<void(std::int64_t)>& task) {
    tasks = static_cast<int>(count);
    std::vector<std::jthread> workers;
    for (std::int64_t t = 0; t < 3; ++t)
      workers.emplace_back([&, t] {
        for (std::int64_t i = t; i < count; i += 3) task(i);
      });
  };
  const PackedWeight three = pack(rows_of(s.matrix), Precision::packed, threads);
  EXPECT_GT(tasks, 1);
  ASSERT_EQ(one.storage.size(), three.storage.size());
  EXPECT_EQ(std::memcmp(one.storage.data(), three.storage.data(), one.storage.size()), 0);
}

TEST(Pack, ErrorOfAReaderReachesTheCallerFromAnyThread) {
  const Sample s = sample(8, 64, FloatType::f16, 4000, 1024);
  MatrixRows rows = rows_of(s.matrix);
  const auto read = rows.affine;
  rows.affine = [read](std::int64_t row, std::uint8_t* codes, std::byte* scales, std::byte* biases) {
    if (row == 3999) throw Error(ErrorKind::data, "row 3999");
    read(row, codes, scales, biases);
  };
  const ParallelFor inline_loop = [](std::int64_t count, const std::function<void(std::int64_t)>& task) {
    for (std::int64_t i = 0; i < count; ++i) task(i);
  };
  EXPECT_EQ(message_of([&] { pack(rows, Precision::packed, inline_loop); }), "row 3999");
  EXPECT_EQ(message_of([&] { pack(rows, Precision::packed, {}); }), "row 3999");
}

TEST(Pack, RoundTripsRandomShapes) {
  rc::check([] {
    const int bits = *rc::gen::inRange(1, 9);
    const int group = 32 << *rc::gen::inRange(0, 3);
    const std::int64_t n = *rc::gen::inRange<std::int64_t>(1, 200);
    const std::int64_t k = group * *rc::gen::inRange<std::int64_t>(1, 4);
    const Sample s = sample(bits, group, FloatType::bf16, n, k);
    RC_ASSERT(unpack(pack_affine(s.matrix).view).codes == s.codes);
    const E2m1Sample e = e2m1_sample(bits % 2 == 0 ? Fp4Mode::mxfp4 : Fp4Mode::nvfp4, n, k);
    RC_ASSERT(unpack(pack(rows_of(e.matrix), Precision::packed, {}).view).codes == e.codes);
  });
}

}  // namespace
}  // namespace outrider
