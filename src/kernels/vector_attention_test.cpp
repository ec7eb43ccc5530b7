// Attention (numerics.md section 5): the portable table against double references and against the text, the
// others against its bytes.
#include "kernels/math.h"
#include "kernels/vector_test_data.h"

namespace outrider {
namespace {

using namespace vector_test;  // NOLINT: the data of these tests

class VectorAttention : public VectorTable {};
INSTANTIATE_TEST_SUITE_P(Isas, VectorAttention, kVectorIsas, isa_name);

const KernelTable& portable() { return portable_table_under_test(); }

// The keys and values of one kv head, and queries with their newest visible key.
struct Scene {
  Scene(std::int64_t width, std::int64_t keys, FloatType type, Random& random, float spread = 1.0F)
      : width(width), type(type), blocks((keys + 63) / 64) {
    k.resize(blocks, std::vector<std::byte>(static_cast<std::size_t>(width) * 64 * size_of(type)));
    v = k;
    for (std::int64_t key = 0; key < keys; ++key) {
      const std::vector<float> keys_row = bells(static_cast<std::size_t>(width), random, spread);
      put(key, keys_row, bells(static_cast<std::size_t>(width), random));
    }
  }
  void put(std::int64_t key, const std::vector<float>& keys, const std::vector<float>& values) {
    std::uint32_t fault = 0;
    portable().store_kv(keys.data(), values.data(), width, key % 64, type, k[key / 64].data(), v[key / 64].data(),
                        &fault);
  }
  void ask(const std::vector<float>& query, std::int64_t last_key) {
    q.push_back(query);
    last.push_back(last_key);
  }

  std::int64_t width;
  FloatType type;
  std::size_t blocks;
  std::vector<std::vector<std::byte>> k, v;
  std::vector<std::vector<float>> q;
  std::vector<std::int64_t> last;
  std::int64_t first_key = 0;
};

struct Partial {
  std::vector<float> m, l, acc;
};

// Queries [first, first + count) over the chunk; blocks beyond the scene are null pointers.
Partial attend(const KernelTable& table, const Scene& scene, std::int64_t chunk = 0, std::size_t first = 0,
               std::size_t count = SIZE_MAX) {
  count = std::min(count, scene.q.size() - first);
  std::vector<const float*> q;
  for (std::size_t i = 0; i < count; ++i) q.push_back(scene.q[first + i].data());
  const std::byte* k_blocks[8] = {};
  const std::byte* v_blocks[8] = {};
  for (std::size_t b = 0; b < 8 && static_cast<std::size_t>(chunk) * 8 + b < scene.blocks; ++b) {
    k_blocks[b] = scene.k[static_cast<std::size_t>(chunk) * 8 + b].data();
    v_blocks[b] = scene.v[static_cast<std::size_t>(chunk) * 8 + b].data();
  }
  Partial out{std::vector<float>(count, kNaN), std::vector<float>(count, kNaN),
              std::vector<float>(count * static_cast<std::size_t>(scene.width), kNaN)};
  AttendChunk work;
  work.q = q.data();
  work.last_key = scene.last.data() + first;
  work.queries = static_cast<std::int64_t>(count);
  work.chunk_begin = chunk * kChunkKeys;
  work.first_key = scene.first_key;
  work.k_blocks = k_blocks;
  work.v_blocks = v_blocks;
  work.next_k = k_blocks[0];  // what is asked for ahead is never read into a result
  work.next_v = v_blocks[0];
  work.kv_type = scene.type;
  work.head_width = scene.width;
  work.m = out.m.data();
  work.l = out.l.data();
  work.acc = out.acc.data();
  table.attend_chunk(work);
  return out;
}

testing::AssertionResult same(const Partial& a, const Partial& b) {
  if (auto result = same_bytes(a.m, b.m); !result) return result << " in m";
  if (auto result = same_bytes(a.l, b.l); !result) return result << " in l";
  if (auto result = same_bytes(a.acc, b.acc); !result) return result << " in acc";
  return testing::AssertionSuccess();
}

// All chunks of one query, merged and finished.
std::vector<float> output(const KernelTable& table, const Scene& scene, std::size_t query) {
  const auto width = static_cast<std::size_t>(scene.width);
  Partial total = attend(table, scene, 0, query, 1);
  for (std::int64_t chunk = 1; chunk * kChunkKeys <= scene.last[query]; ++chunk) {
    const Partial next = attend(table, scene, chunk, query, 1);
    table.attend_merge(total.m.data(), total.l.data(), total.acc.data(), next.m[0], next.l[0], next.acc.data(),
                       scene.width);
  }
  std::vector<float> o(width);
  table.attend_finish(total.acc.data(), total.l[0], scene.width, o.data());
  return o;
}

TEST(Attention, MatchesADoubleSoftmaxOverSeveralChunks) {
  Random random(3);
  for (FloatType type : {FloatType::f16, FloatType::f32}) {
    for (std::int64_t width : {1L, 18L, 64L}) {
      Scene scene(width, 1300, type, random);
      for (std::int64_t last : {0L, 1L, 63L, 64L, 511L, 512L, 513L, 1023L, 1299L}) {
        scene.ask(bells(static_cast<std::size_t>(width), random, 1.5F / std::sqrt(static_cast<float>(width))), last);
      }
      for (std::size_t i = 0; i < scene.q.size(); ++i) {
        std::vector<double> s, want(static_cast<std::size_t>(width));
        for (std::int64_t j = 0; j <= scene.last[i]; ++j) {
          double sum = 0.0;
          for (std::int64_t d = 0; d < width; ++d) {
            sum += static_cast<double>(scene.q[i][d]) * element(scene.k[j / 64], type, d * 64 + j % 64);
          }
          s.push_back(sum);
        }
        const double m = *std::max_element(s.begin(), s.end());
        double total = 0.0;
        for (std::size_t j = 0; j < s.size(); ++j) {
          const double p = std::exp(s[j] - m);
          total += p;
          for (std::int64_t d = 0; d < width; ++d) want[d] += p * element(scene.v[j / 64], type, j % 64 * width + d);
        }
        const std::vector<float> o = output(portable(), scene, i);
        for (std::int64_t d = 0; d < width; ++d) EXPECT_NEAR(o[d], want[d] / total, 3e-6) << scene.last[i];
      }
    }
  }
}

// The text in other words, for one dim: every rounding of the online softmax is written out.
TEST(Attention, FollowsTheOrderOfTheText) {
  Random random(4);
  Scene scene(1, 200, FloatType::f32, random, 3.0F);
  scene.ask({1.7F}, 150);
  const Partial got = attend(portable(), scene);
  float m = -kInfinity, acc = 0.0F, l[16] = {};
  for (int begin = 0; begin <= 150; begin += 64) {
    const int end = std::min(begin + 64, 151);
    float next = m;
    for (int j = begin; j < end; ++j)
      next = std::max(next, scene.q[0][0] * element(scene.k[begin / 64], scene.type, j % 64));
    const float r = begin == 0 ? 0.0F : exp32(m - next);
    for (float& lane : l) lane *= r;
    acc *= r;
    m = next;
    for (int j = begin; j < end; ++j) {
      const float p = exp32(scene.q[0][0] * element(scene.k[begin / 64], scene.type, j % 64) - m);
      l[j % 16] += p;
      acc = std::fma(p, element(scene.v[begin / 64], scene.type, j % 64), acc);
    }
  }
  for (int step : {8, 4, 2, 1}) {
    for (int i = 0; i < step; ++i) l[i] += l[i + step];
  }
  EXPECT_EQ(bits(got.m[0]), bits(m));
  EXPECT_EQ(bits(got.l[0]), bits(l[0]));
  EXPECT_EQ(bits(got.acc[0]), bits(acc));
}

TEST(Attention, MergesByTheLargerMaximum) {
  float m = 1.0F, l = 3.0F, acc[2] = {5.0F, -7.0F};
  const float later[2] = {11.0F, 13.0F};
  portable().attend_merge(&m, &l, acc, 2.5F, 4.0F, later, 2);
  const float e = exp32(1.0F - 2.5F);
  EXPECT_EQ(m, 2.5F);
  EXPECT_EQ(bits(l), bits(std::fma(4.0F, 1.0F, 3.0F * e)));
  EXPECT_EQ(bits(acc[0]), bits(std::fma(11.0F, 1.0F, 5.0F * e)));
  EXPECT_EQ(bits(acc[1]), bits(std::fma(13.0F, 1.0F, -7.0F * e)));
  float o[2];
  portable().attend_finish(acc, l, 2, o);
  EXPECT_EQ(bits(o[1]), bits(acc[1] / l));
}

// Scores -0 (a product that underflows) and +0, the -0 at every place of a block.
Scene scene_of_zeros(std::int64_t minus_zero, std::int64_t keys, Random& random) {
  Scene scene(1, keys, FloatType::f32, random);
  for (std::int64_t key = 0; key < keys; ++key) scene.put(key, {key == minus_zero ? 1e-30F : -1e-30F}, {1.0F});
  scene.ask({-1e-30F}, keys - 1);
  return scene;
}

TEST(Attention, GivesPlusZeroForAMaximumOfZeros) {
  Random random(5);
  for (std::int64_t keys : {1L, 3L, 64L}) {
    for (std::int64_t key = 0; key < keys; ++key) {
      EXPECT_EQ(bits(attend(portable(), scene_of_zeros(key, keys, random)).m[0]), 0U);
    }
  }
}

TEST(VectorAttentionBytes, AreThoseOfTheFirstVersion) {
  Random random(6);
  Scene scene(64, 512, FloatType::f16, random);
  for (std::int64_t last : {17L, 200L, 511L}) scene.ask(bells(64, random, 0.3F), last);
  const Partial out = attend(portable(), scene);
  EXPECT_EQ(hash_of(out.m), 0xa082a52f6da021d4U);
  EXPECT_EQ(hash_of(out.l), 0x77eaab1be138fb49U);
  EXPECT_EQ(hash_of(out.acc), 0xcab5c45ebdc03734U);
  Scene longer(20, 1300, FloatType::f32, random);
  longer.ask(bells(20, random, 0.5F), 1299);
  EXPECT_EQ(hash_of(output(portable(), longer, 0)), 0x8aafab35434aa472U);
}

TEST_P(VectorAttention, GivesThePortableBytesForEveryWidthAndNumberOfQueries) {
  Random random(7);
  for (std::int64_t width : {1L, 2L, 7L, 8L, 16L, 18L, 20L, 32L, 48L, 64L, 72L, 80L, 96L, 128L, 144L, 256L}) {
    for (FloatType type : {FloatType::f16, FloatType::f32}) {
      Scene scene(width, 512, type, random);
      for (int i = 0; i < 50; ++i) {
        const float spread = random.below(4) == 0 ? 8.0F : 1.0F;
        scene.ask(bells(static_cast<std::size_t>(width), random, spread / std::sqrt(static_cast<float>(width))),
                  random.below(5) == 0 ? 511 + random.below(1000) : random.below(512));
      }
      const Partial all = attend(portable(), scene);
      for (std::size_t first = 0, count = 1; count <= 6; first += count, ++count) {  // 1 to 6 queries
        ASSERT_TRUE(same(attend(portable(), scene, 0, first, count), attend(table(), scene, 0, first, count)))
            << "width " << width << ", " << count << " queries";
      }
      for (std::size_t count : {7U, 8U, 9U, 10U, 11U, 12U, 13U, 47U, 48U, 49U, 50U}) {
        Partial got = attend(table(), scene, 0, 0, count), expected = all;
        expected.m.resize(count);
        expected.l.resize(count);
        expected.acc.resize(count * static_cast<std::size_t>(width));
        ASSERT_TRUE(same(expected, got)) << "width " << width << ", " << count << " queries";
      }
    }
  }
}

// A prompt: heads of a group share a last key, tokens ascend; every place of the diagonal within a block.
TEST_P(VectorAttention, GivesThePortableBytesOnTheDiagonal) {
  Random random(8);
  Scene scene(32, 512, FloatType::f16, random);
  for (std::int64_t last = 40; last < 140; ++last) {
    for (int head = 0; head < 3; ++head) scene.ask(bells(32, random, 0.4F), last);
  }
  const Partial expected = attend(portable(), scene);
  EXPECT_TRUE(same(expected, attend(table(), scene)));
}

// Rows behind the newest visible key hold NaN, and blocks without a visible key are no memory at all.
TEST_P(VectorAttention, NeverLooksBehindTheNewestVisibleKey) {
  Random random(9);
  for (std::int64_t width : {18L, 64L}) {
    for (std::size_t queries : {1U, 3U, 6U, 24U}) {
      for (std::int64_t last : {0L, 5L, 15L, 16L, 62L, 63L, 64L, 100L, 127L}) {
        Scene clean(width, last + 1, FloatType::f16, random);
        for (std::size_t i = 0; i < queries; ++i) {
          clean.ask(bells(static_cast<std::size_t>(width), random, 0.3F),
                    last - static_cast<std::int64_t>(i % 3) * (last / 3));
        }
        Scene stale = clean;
        const std::vector<float> nan(static_cast<std::size_t>(width), kNaN);
        for (std::int64_t key = last + 1; key % 64 != 0; ++key) stale.put(key, nan, nan);
        const Partial expected = attend(portable(), clean);
        for (float value : expected.acc) ASSERT_TRUE(std::isfinite(value));
        ASSERT_TRUE(same(expected, attend(portable(), stale)));
        ASSERT_TRUE(same(expected, attend(table(), stale))) << "last key " << last << ", " << queries << " queries";
      }
    }
  }
}

// The portable table does not visit keys below the first one at all: here they hold NaN.
TEST_P(VectorAttention, NeverSeesKeysBelowTheFirst) {
  Random random(12);
  for (std::int64_t width : {16L, 18L, 64L}) {
    for (std::int64_t first_key : {1L, 5L, 16L}) {
      Scene scene(width, 600, FloatType::f16, random);
      scene.first_key = first_key;
      for (std::int64_t last : {17L, 40L, 63L, 64L, 200L, 511L, 599L})
        scene.ask(bells(static_cast<std::size_t>(width), random, 0.3F), last);
      Scene unseen = scene;
      const std::vector<float> nan(static_cast<std::size_t>(width), kNaN);
      for (std::int64_t key = 0; key < first_key; ++key) unseen.put(key, nan, nan);
      const Partial expected = attend(portable(), unseen);
      for (float value : expected.acc) ASSERT_TRUE(std::isfinite(value));
      ASSERT_TRUE(same(expected, attend(table(), scene))) << "first key " << first_key << ", width " << width;
      const Partial from_zero = [&] {
        Scene all = scene;
        all.first_key = 0;
        return attend(table(), all);
      }();
      ASSERT_FALSE(same(expected, from_zero));
      ASSERT_TRUE(same(attend(portable(), unseen, 1, 6, 1), attend(table(), scene, 1, 6, 1)));
    }
  }
}

TEST_P(VectorAttention, GivesPlusZeroForAMaximumOfZeros) {
  Random random(5);
  for (std::int64_t keys : {1L, 3L, 17L, 64L}) {
    for (std::int64_t key = 0; key < keys; ++key) {
      const Scene scene = scene_of_zeros(key, keys, random);
      ASSERT_TRUE(same(attend(portable(), scene), attend(table(), scene)));
    }
  }
}

TEST_P(VectorAttention, KeepsFaultsInTheirOwnQuery) {
  Random random(10);
  Scene scene(16, 300, FloatType::f16, random);
  for (int i = 0; i < 30; ++i) {
    std::vector<float> q = bells(16, random, 0.3F);
    if (i % 5 == 1) q[3] = kNaN;
    if (i % 5 == 2) q[4] = kInfinity;
    if (i % 5 == 3) q.assign(16, -3e38F);  // scores overflow
    if (i % 10 == 4) q.assign(16, 0.0F);
    scene.ask(q, 299 - i);
  }
  const Partial expected = attend(portable(), scene), got = attend(table(), scene);
  EXPECT_TRUE(same(expected, got));
  for (std::size_t i = 0; i < 30; i += 5) EXPECT_TRUE(std::isfinite(got.l[i]) && std::isfinite(got.acc[i * 16]));
  EXPECT_TRUE(std::isnan(got.l[1]));
  EXPECT_TRUE(std::isnan(got.l[2]));
}

TEST_P(VectorAttention, MergesAndFinishesWithThePortableBytes) {
  Random random(11);
  for (std::size_t width : {1U, 7U, 8U, 16U, 18U, 64U, 80U, 256U}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<float> acc = bells(width, random), later = bells(width, random), got = acc;
      float m = bell(random) * 10, l = std::fabs(bell(random)) + 1, got_m = m, got_l = l;
      const float m_b = repeat == 0 ? m : bell(random) * 10, l_b = std::fabs(bell(random)) + 1;
      portable().attend_merge(&m, &l, acc.data(), m_b, l_b, later.data(), static_cast<std::int64_t>(width));
      table().attend_merge(&got_m, &got_l, got.data(), m_b, l_b, later.data(), static_cast<std::int64_t>(width));
      EXPECT_EQ(bits(m), bits(got_m));
      EXPECT_EQ(bits(l), bits(got_l));
      ASSERT_TRUE(same_bytes(acc, got));
      std::vector<float> o(width), got_o(width);
      portable().attend_finish(acc.data(), l, static_cast<std::int64_t>(width), o.data());
      table().attend_finish(acc.data(), l, static_cast<std::int64_t>(width), got_o.data());
      ASSERT_TRUE(same_bytes(o, got_o));
    }
  }
}

}  // namespace
}  // namespace outrider
