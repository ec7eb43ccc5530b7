#include "device/cpu_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/packed_fixture.h"

namespace outrider {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(CpuDevice, EmbeddingRowsAreTheDequantizedRows) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 200; ++i) ids.push_back(i * 7 % 300);
  std::vector<PackedFixture> tables;
  for (const int bits : {2, 3, 4, 5, 6, 8}) tables.push_back(PackedFixture::affine(300, 128, bits, 64, 1));
  for (const int group : {16, 32}) tables.push_back(PackedFixture::e2m1(300, 128, group, 2));
  tables.push_back(PackedFixture::dense(300, 128, 3));
  CpuDevice device(3, kernels());
  for (const PackedFixture& table : tables) {
    Values out(200, 128), expected(1, 128);
    device.embed(table.view, ids, out.tensor());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      kernel_table(Isa::portable)->unpack_row(table.view, ids[i], expected.data.data());
      EXPECT_EQ(std::memcmp(out.row(static_cast<std::int64_t>(i)), expected.data.data(), 128 * 4), 0)
          << table.view.bits << "/" << table.view.group << " " << i;
    }
  }
}

TEST(CpuDevice, GathersRowsInAnyOrder) {
  Values x = Values::random(5, 7, 2), out(3, 7);
  CpuDevice(1, kernels()).gather(x.tensor(), std::vector<std::int64_t>{4, 0, 4}, out.tensor());
  EXPECT_EQ(out.row(0)[3], x.row(4)[3]);
  EXPECT_EQ(out.row(1)[3], x.row(0)[3]);
  EXPECT_EQ(out.row(2)[6], x.row(4)[6]);
}

TEST(CpuDevice, ArgmaxTakesTheLowestIdAndFlagsNan) {
  for (const int threads : {1, 3}) {
    CpuDevice device(threads, kernels());
    Values z = Values::random(5, 40000, 3);
    for (float& value : z.data) value = std::min(value, 9.0F);
    z.row(0)[39999] = z.row(0)[20000] = z.row(0)[8192] = 10;  // in several ranges: the lowest id wins
    z.row(1)[0] = 11;
    z.row(2)[123] = kNan;
    z.row(2)[30000] = 12;
    std::fill(z.row(3), z.row(4), kNan);
    std::fill(z.row(4), z.row(4) + 40000, -kInf);
    std::vector<std::int32_t> ids(5);
    std::vector<std::uint32_t> faults(5);
    device.argmax(z.tensor(), ids.data(), faults.data());
    EXPECT_EQ(ids, (std::vector<std::int32_t>{8192, 0, 30000, 0, 0}));
    EXPECT_EQ(faults, (std::vector<std::uint32_t>{0, 0, kFaultNonFinite, kFaultNonFinite, 0}));
  }
}

TEST(CpuDevice, LogNormalizersMatchDoubleAndDoNotDependOnThreads) {
  constexpr std::int64_t kVocab = 20011;
  Values z = Values::random(37, kVocab, 4);
  for (float& value : z.data) value *= 6;
  std::fill(z.row(5), z.row(6), -kInf);
  z.row(7)[3] = -kInf;
  std::vector<float> max(37), other_max(37);
  std::vector<double> ln_sum(37), other_ln_sum(37);
  CpuDevice(1, *kernel_table(Isa::portable)).log_normalizers(z.tensor(), max.data(), ln_sum.data());
  for (const KernelTable* table : present_tables()) {
    CpuDevice(3, *table).log_normalizers(z.tensor(), other_max.data(), other_ln_sum.data());
    EXPECT_EQ(std::memcmp(ln_sum.data(), other_ln_sum.data(), sizeof(double) * 37), 0);
    EXPECT_EQ(std::memcmp(max.data(), other_max.data(), sizeof(float) * 37), 0);
  }
  for (std::int64_t r = 0; r < 37; ++r) {
    if (r == 5) continue;
    double top = -1e30, sum = 0;
    for (std::int64_t v = 0; v < kVocab; ++v) top = std::max(top, static_cast<double>(z.row(r)[v]));
    for (std::int64_t v = 0; v < kVocab; ++v) sum += std::exp(static_cast<double>(z.row(r)[v]) - top);
    EXPECT_EQ(max[static_cast<std::size_t>(r)], static_cast<float>(top));
    EXPECT_NEAR(ln_sum[static_cast<std::size_t>(r)], std::log(sum), 2e-6) << r;
  }
  EXPECT_EQ(max[5], -kInf);
  EXPECT_EQ(ln_sum[5], -std::numeric_limits<double>::infinity());
}

TEST(CpuDevice, NormalizersTakeTheirScratchOnceAndNoMoreThanPlanned) {
  CpuDevice device(2, kernels());
  const std::size_t before = memory_use(MemoryPart::scratch).now_bytes;
  const auto taken = [&] { return memory_use(MemoryPart::scratch).now_bytes - before; };
  device.reserve_normalizers(100, 5000);
  EXPECT_EQ(taken(), device.normalizer_scratch_bytes(100, 5000));
  EXPECT_EQ(taken(), 16u * 20 * 2 * sizeof(float));  // 16 rows at a time, 20 tiles of 256
  reset_memory_peaks();
  Values z = Values::random(37, 5000, 4);
  std::vector<float> max(37);
  std::vector<double> ln_sum(37);
  device.log_normalizers(z.tensor(), max.data(), ln_sum.data());
  device.log_normalizers(z.tensor().slice(0, 3).columns(0, 700), max.data(), ln_sum.data());
  EXPECT_EQ(memory_use(MemoryPart::scratch).peak_bytes - before, taken());
  EXPECT_EQ(taken(), device.normalizer_scratch_bytes(37, 5000));
}

// A row that holds a NaN or +inf has no sum: a finite or infinite one would score as a certain token.
TEST(CpuDevice, LogNormalizersKeepANaN) {
  constexpr std::int64_t kVocab = 1000;
  for (const KernelTable* table : present_tables()) {
    Values z = Values::random(6, kVocab, 14);
    z.row(0)[999] = kNan;
    std::fill(z.row(1), z.row(1) + kVocab, kNan);
    std::fill(z.row(2), z.row(2) + kVocab, -kInf);
    z.row(2)[300] = kNan;
    z.row(3)[300] = kInf;
    std::fill(z.row(4), z.row(4) + kVocab, -kInf);
    std::vector<float> max(6);
    std::vector<double> ln_sum(6);
    CpuDevice(2, *table).log_normalizers(z.tensor(), max.data(), ln_sum.data());
    for (const std::size_t r : {0u, 1u, 2u, 3u}) EXPECT_TRUE(std::isnan(ln_sum[r])) << r << " " << name_of(table->isa);
    EXPECT_EQ(ln_sum[4], -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isfinite(ln_sum[5]));
  }
}

// Rotates, norms, scales and stores one token by the portable kernels, written out.
TEST(CpuDevice, RopeStoreEqualsItsParts) {
  constexpr std::int64_t kWidth = 16, kHeads = 4, kKv = 2, kTokens = 70, kHalf = 6;
  const KernelTable& twin = *kernel_table(Isa::portable);
  Values q_norm = Values::random(1, kWidth, 5), k_norm = Values::random(1, kWidth, 6);
  AttentionShape shape{kHeads, kKv, kWidth, kHalf, RopePairs::half_split, q_norm.data.data(), k_norm.data.data(),
                       1e-6F};
  const KvLayout layout = {1, kKv, kWidth, FloatType::f16};
  std::vector<float> inv_freq = {1, 0.5F, 0.2F, 0.1F, 0.03F, 0.01F};
  Values q = Values::random(kTokens, kHeads * kWidth, 7), k = Values::random(kTokens, kKv * kWidth, 8);
  Values v = Values::random(kTokens, kKv * kWidth, 9);
  k.row(3)[0] = 1e9F;  // the norm brings it back into range
  v.row(4)[5] = 1e6F;  // clamped
  v.row(66)[31] = -7e4F;
  v.row(5)[1] = kInf;  // faulty
  std::vector<std::int32_t> ids(kTokens);
  BlocksFixture blocks(layout, 30 + 65), other(layout, 5);
  const std::vector<BatchRow> rows = {{0, 65, 30, 0, blocks.pointers}, {65, 70, 0, 0, other.pointers}};
  const std::vector<RowFrequencies> frequencies(2, RowFrequencies{inv_freq.data(), 1.25F});
  for (const int threads : {1, 4}) {
    CpuDevice device(threads, kernels());
    Values cos(kTokens, kHalf), sin(kTokens, kHalf), q1 = q, k1 = k, v1 = v;
    device.rope_angles({ids, rows}, frequencies, {cos.tensor(), sin.tensor()});
    std::vector<std::uint32_t> faults(kTokens);
    std::vector<std::int64_t> clamps(kTokens);
    device.rope_store(shape, {cos.tensor(), sin.tensor()}, {ids, rows}, layout, 0, q1.tensor(), k1.tensor(),
                      v1.tensor(), faults.data(), clamps.data());
    EXPECT_EQ(clamps[4], 1);
    EXPECT_EQ(clamps[66], 1);
    EXPECT_EQ(std::count(clamps.begin(), clamps.end(), 0), kTokens - 2);
    EXPECT_EQ(faults[5], kFaultNonFinite);
    EXPECT_EQ(std::count(faults.begin(), faults.end(), 0U), kTokens - 1);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int64_t position = t < 65 ? 30 + t : t - 65;
      std::vector<float> c(kHalf), s(kHalf), head(q.row(t) + 2 * kWidth, q.row(t) + 3 * kWidth);
      twin.rope_angles(position, inv_freq.data(), kHalf, 1.25F, c.data(), s.data());
      twin.rms_norm(head.data(), q_norm.data.data(), kWidth, 1e-6F, head.data());
      twin.rope_rotate(head.data(), c.data(), s.data(), kHalf, RopePairs::half_split);
      twin.scale(head.data(), 0.25F, kWidth, head.data());
      EXPECT_EQ(std::memcmp(head.data(), q1.row(t) + 2 * kWidth, kWidth * 4), 0) << t;
    }
  }
}

TEST(CpuDevice, ParallelForCallsEveryIndexOnce) {
  CpuDevice device(4, kernels());
  std::vector<std::atomic<int>> seen(100);
  device.parallel_for(100, [&](std::int64_t i) { ++seen[static_cast<std::size_t>(i)]; });
  for (const std::atomic<int>& count : seen) EXPECT_EQ(count.load(), 1);
}

TEST(CpuDeviceDeathTest, ChecksTokenIds) {
  const PackedFixture table = PackedFixture::dense(10, 32, 1);
  CpuDevice device(1, kernels());
  Values out(1, 32);
  EXPECT_DEATH(device.embed(table.view, std::vector<std::int32_t>{10}, out.tensor()), "token id 10 of 10");
}

}  // namespace
}  // namespace outrider
