#include <gtest/gtest.h>

#include <cmath>

#include "device/packed_fixture.h"

namespace outrider {
namespace {

// A random batch with all its caches: rows of `prior` stored tokens and `fresh` new ones.
struct RowSpec {
  std::int64_t prior, fresh;
};

struct Scene {
  AttentionShape shape;
  KvLayout layout;
  std::vector<std::int32_t> ids;
  std::vector<BatchRow> rows;
  std::vector<BlocksFixture> blocks;
  Values q, out;

  RaggedBatch batch() const { return {ids, rows}; }
};

constexpr std::int64_t kLayer = 1;

// Values of (row seed, position): the same row has the same keys and queries wherever it stands in a batch.
std::vector<float> vector_of(std::uint32_t seed, std::int64_t position, std::int64_t head, std::int64_t width) {
  std::minstd_rand random(seed * 7919U + static_cast<std::uint32_t>(position) * 104729U +
                          static_cast<std::uint32_t>(head) + 1);
  random.discard(4);
  std::uniform_real_distribution<float> uniform(-1.7F, 1.7F);
  std::vector<float> values(static_cast<std::size_t>(width));
  for (float& value : values) value = uniform(random);
  return values;
}

Scene make_scene(const AttentionShape& shape, FloatType type, const std::vector<RowSpec>& specs,
                 std::uint32_t first_seed = 0) {
  std::int64_t tokens = 0;
  for (const RowSpec& spec : specs) tokens += spec.fresh;
  Scene scene{shape,
              {2, shape.kv_heads, shape.head_width, type},
              {},
              {},
              {},
              Values(tokens, shape.heads * shape.head_width),
              Values(tokens, shape.heads * shape.head_width)};
  scene.ids.resize(static_cast<std::size_t>(tokens));
  scene.blocks.reserve(specs.size());
  const KernelTable& kernels = *kernel_table(Isa::portable);
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < specs.size(); ++r) {
    const std::uint32_t seed = first_seed + static_cast<std::uint32_t>(r);
    const std::int64_t length = specs[r].prior + specs[r].fresh, width = shape.head_width;
    scene.blocks.emplace_back(scene.layout, length);
    std::uint32_t fault = 0;
    for (std::int64_t p = 0; p < length; ++p)
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        std::byte* block = scene.blocks[r].pointers[static_cast<std::size_t>(p / 64)];
        kernels.store_kv(vector_of(seed, p, h, width).data(), vector_of(seed, p, 100 + h, width).data(), width, p % 64,
                         type, block + scene.layout.k_offset(kLayer, h), block + scene.layout.v_offset(kLayer, h),
                         &fault);
      }
    for (std::int64_t t = 0; t < specs[r].fresh; ++t)
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const std::vector<float> q = vector_of(seed, specs[r].prior + t, 200 + h, width);
        for (std::int64_t d = 0; d < width; ++d)
          scene.q.row(begin + t)[h * width + d] = q[static_cast<std::size_t>(d)] * 0.3F;
      }
    scene.rows.push_back({begin, begin + specs[r].fresh, specs[r].prior, length, scene.blocks[r].pointers});
    begin += specs[r].fresh;
  }
  return scene;
}

void attend(Scene& scene, int threads, const KernelTable& table) {
  CpuDevice device(threads, table);
  std::int64_t context = 0;
  for (const BatchRow& row : scene.rows) context = std::max(context, row.position + row.end - row.begin);
  Arena arena(
      device.attention_scratch_bytes(scene.q.rows, static_cast<std::int64_t>(scene.rows.size()), scene.shape, context));
  device.attention(scene.shape, scene.batch(), scene.layout, kLayer, scene.q.tensor(), scene.out.tensor(), arena);
}

// Softmax attention in double over the stored values.
void expect_close_to_double(Scene& scene, std::uint32_t first_seed, double bound) {
  const AttentionShape& s = scene.shape;
  for (std::size_t r = 0; r < scene.rows.size(); ++r)
    for (std::int64_t t = scene.rows[r].begin; t < scene.rows[r].end; ++t)
      for (std::int64_t h = 0; h < s.heads; ++h) {
        const std::int64_t last = scene.rows[r].position + t - scene.rows[r].begin, kv = h / (s.heads / s.kv_heads);
        const std::uint32_t seed = first_seed + static_cast<std::uint32_t>(r);
        std::vector<double> sum(static_cast<std::size_t>(s.head_width));
        double total = 0;
        for (std::int64_t j = scene.rows[r].first_key; j <= last; ++j) {
          const std::vector<float> k = vector_of(seed, j, kv, s.head_width),
                                   v = vector_of(seed, j, 100 + kv, s.head_width);
          double score = 0;
          for (std::int64_t d = 0; d < s.head_width; ++d)
            score += static_cast<double>(scene.q.row(t)[h * s.head_width + d]) *
                     static_cast<double>(k[static_cast<std::size_t>(d)]);
          total += std::exp(score);
          for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += std::exp(score) * static_cast<double>(v[d]);
        }
        for (std::size_t d = 0; d < sum.size(); ++d)
          EXPECT_NEAR(scene.out.row(t)[h * s.head_width + static_cast<std::int64_t>(d)], sum[d] / total, bound)
              << t << " " << h;
      }
}

AttentionShape shape_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t width) {
  AttentionShape shape;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_width = width;
  return shape;
}

TEST(CpuAttention, MatchesSoftmaxInDoubleAndNeverReadsStaleSlots) {
  for (const FloatType type : {FloatType::f32, FloatType::f16})
    for (const auto& [heads, kv_heads] : {std::pair{4, 2}, std::pair{3, 3}, std::pair{8, 1}}) {
      Scene scene = make_scene(shape_of(heads, kv_heads, 16), type, {{0, 5}, {63, 2}, {600, 1}, {510, 4}});
      attend(scene, 2, kernels());
      expect_close_to_double(scene, 0, type == FloatType::f32 ? 1e-5 : 2e-3);
    }
}

TEST(CpuAttention, NeverSeesKeysBelowTheFirst) {
  const AttentionShape shape = shape_of(4, 2, 16);
  const std::vector<RowSpec> specs = {{1, 5}, {63, 2}, {600, 1}, {1, 40}};
  const auto scene_from_one = [&] {
    Scene scene = make_scene(shape, FloatType::f16, specs);
    for (BatchRow& row : scene.rows) row.first_key = 1;
    return scene;
  };
  Scene expected = scene_from_one();
  attend(expected, 1, *kernel_table(Isa::portable));
  expect_close_to_double(expected, 0, 2e-3);
  for (const KernelTable* table : present_tables()) {
    Scene scene = scene_from_one();
    for (const BlocksFixture& blocks : scene.blocks)
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        auto* k = reinterpret_cast<std::uint16_t*>(blocks.pointers[0] + scene.layout.k_offset(kLayer, h));
        auto* v = reinterpret_cast<std::uint16_t*>(blocks.pointers[0] + scene.layout.v_offset(kLayer, h));
        for (std::int64_t d = 0; d < shape.head_width; ++d) k[d * 64] = v[d] = 0x7bff;  // the largest finite value
      }
    attend(scene, 2, *table);
    EXPECT_TRUE(same_bytes(scene.out.data, expected.out.data)) << name_of(table->isa);
  }
}

TEST(CpuAttention, BytesDependOnNeitherThreadsNorIsaNorNeighbours) {
  const AttentionShape shape = shape_of(6, 2, 32);
  const std::vector<RowSpec> specs = {{0, 70}, {1500, 1}, {1023, 3}, {40, 1}, {511, 2}};
  Scene expected = make_scene(shape, FloatType::f16, specs);
  attend(expected, 1, *kernel_table(Isa::portable));
  for (const KernelTable* table : present_tables())
    for (const int threads : {1, 2, 7}) {
      Scene scene = make_scene(shape, FloatType::f16, specs);
      attend(scene, threads, *table);
      EXPECT_TRUE(same_bytes(scene.out.data, expected.out.data)) << name_of(table->isa) << " " << threads;
      for (std::size_t r = 0; r < specs.size(); ++r) {
        Scene solo = make_scene(shape, FloatType::f16, {specs[r]}, static_cast<std::uint32_t>(r));
        attend(solo, threads, *table);
        EXPECT_EQ(std::memcmp(solo.out.data.data(), expected.out.row(expected.rows[r].begin), solo.out.data.size() * 4),
                  0)
            << name_of(table->isa) << ", " << threads << " threads, row " << r;
      }
    }
}

TEST(CpuAttention, ManyMoreChunksThanSlotsAreMergedInWaves) {
  const AttentionShape shape = shape_of(2, 1, 8);
  Scene expected = make_scene(shape, FloatType::f16, {{512 * 67 + 3, 1}});
  attend(expected, 1, kernels());
  Scene spread = make_scene(shape, FloatType::f16, {{512 * 67 + 3, 1}});
  attend(spread, 2, kernels());  // 68 chunks, 64 slots
  EXPECT_TRUE(same_bytes(spread.out.data, expected.out.data));
}

TEST(CpuAttention, ScratchPlanCoversEveryBatchWithinItsLimits) {
  std::mt19937 random(9);
  for (int round = 0; round < 40; ++round) {
    const std::int64_t group = std::int64_t{1} << random() % 4;
    const AttentionShape shape = shape_of(group * 2, 2, 8);
    std::vector<RowSpec> specs;
    std::int64_t tokens = 0;
    for (std::uint32_t r = 0; r < 1 + random() % 5; ++r) {
      const auto below = [&](std::uint32_t limit) { return static_cast<std::int64_t>(random() % limit); };
      specs.push_back({below(1200), 1 + (below(3) == 0 ? below(90) : below(3))});
      tokens += specs.back().fresh;
    }
    Scene scene = make_scene(shape, FloatType::f16, specs);
    CpuDevice device(1 + static_cast<int>(random() % 5), kernels());
    // Planned for more than this batch holds, as an engine does.
    Arena arena(device.attention_scratch_bytes(tokens + 100, 8, shape, 2000));
    device.attention(shape, scene.batch(), scene.layout, kLayer, scene.q.tensor(), scene.out.tensor(), arena);
    EXPECT_LE(arena.peak(), arena.size());
  }
}

TEST(CpuAttentionDeathTest, ChecksTheBatch) {
  Scene scene = make_scene(shape_of(2, 1, 8), FloatType::f16, {{0, 3}, {5, 1}});
  CpuDevice device(1, kernels());
  Arena arena(1 << 20);
  scene.rows[1].begin = 2;
  EXPECT_DEATH(
      device.attention(scene.shape, scene.batch(), scene.layout, kLayer, scene.q.tensor(), scene.out.tensor(), arena),
      "row \\[2, 4\\)");
  scene.rows[1].begin = 3;
  scene.rows[1].blocks = {};
  EXPECT_DEATH(
      device.attention(scene.shape, scene.batch(), scene.layout, kLayer, scene.q.tensor(), scene.out.tensor(), arena),
      "0 blocks for 6 positions");
}

}  // namespace
}  // namespace outrider
