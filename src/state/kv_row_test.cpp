#include "state/kv_row.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/memory.h"
#include "state/test_rows.h"

namespace outrider {
namespace {

TEST(KvRow, StartsEmpty) {
  KvPool pool(test_layout(), 4);
  KvRow row(pool);
  EXPECT_EQ(row.length(), 0);
  EXPECT_TRUE(row.blocks().empty());
  EXPECT_EQ(pool.used_blocks(), 0);
  EXPECT_EQ(pool.capacity_blocks(), 4);
}

TEST(KvRow, NamesItsKind) {
  KvPool half(test_layout(FloatType::f16), 1);
  KvPool full(test_layout(FloatType::f32), 1);
  EXPECT_EQ(KvRow(half).signature(), "kv:plain");
  EXPECT_EQ(KvRow(full).signature(), "kv:plain:f32");
}

TEST(KvRow, StoresKTransposedAndVByPosition) {
  // numerics.md 5: [layer][kv head]{ K [D][64], V [64][D] }.
  const KvLayout layout = test_layout();
  KvPool pool(layout, 3);
  KvRow row(pool);
  const RowModel ids = ids_from(100, 130);
  append_ids(row, layout, ids);
  ASSERT_EQ(row.blocks().size(), 3u);
  for (std::int64_t p = 0; p < 130; ++p)
    for (std::int64_t layer = 0; layer < layout.layers; ++layer)
      for (std::int64_t head = 0; head < layout.kv_heads; ++head)
        for (std::int64_t d = 0; d < layout.head_width; ++d) {
          const std::byte* block = row.blocks()[static_cast<std::size_t>(p / 64)];
          const auto* k = reinterpret_cast<const std::uint16_t*>(block + layout.k_offset(layer, head));
          const auto* v = reinterpret_cast<const std::uint16_t*>(block + layout.v_offset(layer, head));
          const std::uint32_t id = ids[static_cast<std::size_t>(p)];
          const std::int64_t index = head * layout.head_width + d;
          ASSERT_EQ(k[d * 64 + p % 64], static_cast<std::uint16_t>(test_value(id, layer, index, KvPlane::k)));
          ASSERT_EQ(v[p % 64 * layout.head_width + d],
                    static_cast<std::uint16_t>(test_value(id, layer, index, KvPlane::v)));
        }
}

TEST(KvRow, ReadsBackWhatWasAppendedInAnyPieces) {
  for (const FloatType type : {FloatType::f16, FloatType::f32}) {
    const KvLayout layout = test_layout(type);
    KvPool pool(layout, 8);
    const RowModel ids = ids_from(1, 200);
    for (const std::int64_t piece : {1, 7, 63, 64, 65, 200}) {
      KvRow row(pool);
      for (std::int64_t at = 0; at < 200; at += piece)
        append_ids(row, layout, RowModel(ids.begin() + at, ids.begin() + std::min<std::int64_t>(at + piece, 200)));
      ASSERT_TRUE(holds(row, layout, ids)) << "pieces of " << piece;
      const TestPlanes part = read_planes(row, layout, 60, 131);
      ASSERT_EQ(part.k, test_planes(layout, RowModel(ids.begin() + 60, ids.begin() + 131)).k);
      ASSERT_EQ(part.v, test_planes(layout, RowModel(ids.begin() + 60, ids.begin() + 131)).v);
    }
  }
}

TEST(KvRow, TakesPlanesAtAnyAlignment) {
  const KvLayout layout = test_layout(FloatType::f32);
  KvPool pool(layout, 2);
  TestPlanes planes = test_planes(layout, ids_from(5, 3));
  planes.k.insert(planes.k.begin(), std::byte{0});
  planes.v.insert(planes.v.begin(), std::byte{0});
  KvRow row(pool);
  row.append(std::span(planes.k).subspan(1), std::span(planes.v).subspan(1), 3);
  EXPECT_TRUE(holds(row, layout, ids_from(5, 3)));
}

TEST(KvRow, PublishesNothingBeforeAdvance) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 4);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 60));
  row.reserve(70);
  EXPECT_EQ(row.length(), 60);
  EXPECT_EQ(row.blocks().size(), 3u);  // 130 positions
  EXPECT_EQ(pool.used_blocks(), 3);
  row.advance(4);
  row.advance(2);
  EXPECT_EQ(row.length(), 66);
  EXPECT_EQ(row.blocks().size(), 3u);  // the rest of the reservation stays
  row.release_reserved();
  EXPECT_EQ(row.blocks().size(), 2u);
  EXPECT_EQ(pool.used_blocks(), 2);
}

TEST(KvRow, HandsOutZeroedBlocksAlsoWhenTheyWereUsedBefore) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 1);
  for (int round = 0; round < 2; ++round) {
    KvRow row(pool);
    row.reserve(64);
    for (std::size_t i = 0; i < layout.block_bytes(); ++i) ASSERT_EQ(row.blocks()[0][i], std::byte{0});
    std::memset(row.blocks()[0], 0xff, layout.block_bytes());
    row.advance(64);
  }
}

TEST(KvRow, TruncateReleasesBlocksWhollyBehindAndTheNextAppendOverwrites) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 4);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 200));
  EXPECT_EQ(pool.used_blocks(), 4);
  row.truncate(65);
  EXPECT_EQ(pool.used_blocks(), 2);
  row.truncate(64);
  EXPECT_EQ(pool.used_blocks(), 1);
  append_ids(row, layout, ids_from(900, 3));
  EXPECT_TRUE(holds(row, layout, joined(ids_from(1, 64), ids_from(900, 3))));
  row.truncate(0);
  EXPECT_EQ(pool.used_blocks(), 0);
}

TEST(KvRow, NeverMovesPositionsBelowItsLength) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 40);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 64));
  std::byte* const first = row.blocks()[0];
  append_ids(row, layout, ids_from(2, 2000));
  row.truncate(70);
  EXPECT_EQ(row.blocks()[0], first);
  KvRow moved = std::move(row);
  EXPECT_EQ(moved.blocks()[0], first);
}

TEST(KvRow, CloneSharesEveryBlockAndCopiesOnlyTheOneItAppendsInto) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 130));
  KvRow twin = row.clone();
  EXPECT_EQ(pool.used_blocks(), 3);
  append_ids(twin, layout, ids_from(700, 1));
  EXPECT_EQ(pool.used_blocks(), 4);
  EXPECT_EQ(twin.blocks()[1], row.blocks()[1]);
  EXPECT_NE(twin.blocks()[2], row.blocks()[2]);
  append_ids(row, layout, ids_from(800, 1));  // now the only owner: no copy
  EXPECT_EQ(pool.used_blocks(), 4);
  EXPECT_TRUE(holds(twin, layout, joined(ids_from(1, 130), {700})));
  EXPECT_TRUE(holds(row, layout, joined(ids_from(1, 130), {800})));
}

TEST(KvRow, AppendsBehindAPrefixOfWholeBlocksWithoutAnyCopy) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 150));
  KvRow head = row.prefix(128);
  EXPECT_EQ(pool.used_blocks(), 3);
  append_ids(head, layout, ids_from(500, 5));
  EXPECT_EQ(pool.used_blocks(), 4);
  EXPECT_TRUE(holds(head, layout, joined(ids_from(1, 128), ids_from(500, 5))));
  EXPECT_TRUE(holds(row, layout, ids_from(1, 150)));
}

TEST(KvRow, PrefixInsideABlockLeavesTheLongerRowAsItWas) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 150));
  KvRow head = row.prefix(70);
  append_ids(head, layout, ids_from(500, 100));
  EXPECT_TRUE(holds(head, layout, joined(ids_from(1, 70), ids_from(500, 100))));
  EXPECT_TRUE(holds(row, layout, ids_from(1, 150)));
  append_ids(row, layout, ids_from(600, 1));
  EXPECT_TRUE(holds(row, layout, joined(ids_from(1, 150), {600})));
}

TEST(KvRow, CopiesASharedBlockAfterTruncatingIntoIt) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 128));
  KvRow twin = row.clone();
  row.truncate(100);
  append_ids(row, layout, ids_from(900, 28));
  EXPECT_TRUE(holds(twin, layout, ids_from(1, 128)));
  EXPECT_TRUE(holds(row, layout, joined(ids_from(1, 100), ids_from(900, 28))));
}

// Whether positions [begin, 64) of a block are zero in every plane.
bool is_zero_from(const KvLayout& layout, const std::byte* block, std::int64_t begin) {
  for (std::int64_t layer = 0; layer < layout.layers; ++layer)
    for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
      const auto* k = reinterpret_cast<const std::uint16_t*>(block + layout.k_offset(layer, head));
      const auto* v = reinterpret_cast<const std::uint16_t*>(block + layout.v_offset(layer, head));
      for (std::int64_t p = begin; p < 64; ++p)
        for (std::int64_t d = 0; d < layout.head_width; ++d)
          if (k[d * 64 + p] != 0 || v[p * layout.head_width + d] != 0) return false;
    }
  return true;
}

TEST(KvRow, ACopiedBlockHoldsNothingBeyondTheLength) {
  // Later positions of the other owner, and of whoever had the memory before, are another request's: they do not
  // travel.
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  {
    append_ids(*std::make_unique<KvRow>(pool), layout, ids_from(7000, 8 * 64));
  }  // every block has been used
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 64));
  KvRow head = row.prefix(10);
  const KvRow copy = head.extract();
  EXPECT_TRUE(is_zero_from(layout, copy.blocks()[0], 10));
  head.reserve(1);
  EXPECT_TRUE(is_zero_from(layout, head.blocks()[0], 10));
  EXPECT_FALSE(is_zero_from(layout, row.blocks()[0], 10));
}

TEST(KvRow, ExtractSharesNothing) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 150));
  row.reserve(100);
  KvRow copy = row.extract();
  EXPECT_EQ(copy.blocks().size(), 3u);  // the valid span only
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NE(copy.blocks()[i], row.blocks()[i]);
  for (std::byte* block : row.blocks()) std::memset(block, 0x5a, layout.block_bytes());
  EXPECT_TRUE(holds(copy, layout, ids_from(1, 150)));
  const KvRow none = KvRow(pool).extract();
  EXPECT_EQ(none.length(), 0);
}

TEST(KvRow, RefusesWithNumbersWhenThePoolIsFullAndStaysAsItWas) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 3);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 130));
  KvRow twin = row.clone();
  const auto refused = [&](auto operation) {
    try {
      operation();
      return std::string("no error");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::memory);
      EXPECT_FALSE(error.hint().empty());
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused([&] { twin.reserve(63); }),
            fmt::format("63 more positions need 2 KV blocks of {} bytes; 0 of 3 are free", layout.block_bytes()));
  EXPECT_EQ(refused([&] { twin.reserve(1); }),  // the copy of the shared block alone
            fmt::format("1 more positions need 1 KV blocks of {} bytes; 0 of 3 are free", layout.block_bytes()));
  EXPECT_NE(refused([&] { twin.reserve(std::numeric_limits<std::int64_t>::max()); }), "no error");
  EXPECT_NE(refused([&] { const KvRow copy = row.extract(); }), "no error");
  EXPECT_TRUE(holds(twin, layout, ids_from(1, 130)));
  EXPECT_EQ(pool.used_blocks(), 3);
  twin.truncate(0);
  append_ids(row, layout, ids_from(131, 62));  // to the end of the last block
  EXPECT_EQ(row.length(), 192);
}

TEST(KvPool, ChargesItsBlocksToTheKvPartAndTrimGivesThemBack) {
  const KvLayout layout = test_layout();
  const std::size_t before = memory_use(MemoryPart::kv).now_bytes;
  KvPool pool(layout, 8);
  {
    KvRow row(pool);
    append_ids(row, layout, ids_from(1, 150));
    EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, before + 3 * layout.block_bytes());
    pool.trim();  // held blocks stay
    EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, before + 3 * layout.block_bytes());
  }
  EXPECT_EQ(pool.used_blocks(), 0);
  pool.trim();
  EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, before);
}

TEST(KvRow, RoundRollbackSetsALengthAndMovesNothing) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 62));
  row.round_begin();
  append_ids(row, layout, ids_from(500, 2));
  append_ids(row, layout, ids_from(502, 3));
  EXPECT_EQ(row.round_appended(), 5);
  std::byte* const block = row.blocks()[0];
  row.round_rollback(1);
  EXPECT_FALSE(row.in_round());
  EXPECT_EQ(row.blocks()[0], block);
  EXPECT_EQ(pool.used_blocks(), 1);
  append_ids(row, layout, ids_from(700, 2));
  EXPECT_TRUE(holds(row, layout, joined(joined(ids_from(1, 62), {500}), ids_from(700, 2))));
  row.round_begin();
  append_ids(row, layout, ids_from(800, 2));
  row.round_commit();
  EXPECT_EQ(row.length(), 67);
}

TEST(KvRow, PrefixOfTheCommittedPartIsAllowedInsideARound) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 70));
  row.round_begin();
  append_ids(row, layout, ids_from(500, 5));
  const KvRow head = row.prefix(64);
  EXPECT_TRUE(holds(head, layout, ids_from(1, 64)));
  EXPECT_DEATH(row.prefix(71), "prefix of 71 of 70 committed");
  row.round_rollback(0);
}

TEST(KvRowDeath, ProgrammingErrorsAreChecked) {
  const KvLayout layout = test_layout();
  KvPool pool(layout, 8);
  KvRow row(pool);
  append_ids(row, layout, ids_from(1, 10));
  EXPECT_DEATH(row.advance(1), "advance by 1 of 0 reserved");
  EXPECT_DEATH(row.truncate(11), "truncate to 11 of 10");
  EXPECT_DEATH(row.truncate(-1), "truncate to -1 of 10");
  EXPECT_DEATH(row.prefix(11), "prefix of 11 of 10");
  EXPECT_DEATH(row.round_commit(), "without round_begin");
  EXPECT_DEATH(row.round_rollback(0), "without round_begin");
  const TestPlanes planes = test_planes(layout, ids_from(1, 2));
  EXPECT_DEATH(row.append(planes.k, planes.v, 3), "3 positions from");
  row.round_begin();
  append_ids(row, layout, ids_from(1, 2));
  EXPECT_DEATH(row.round_begin(), "inside a round");
  EXPECT_DEATH(row.round_rollback(3), "keeps 3 of 2");
  EXPECT_DEATH(row.round_rollback(-1), "keeps -1 of 2");
  EXPECT_DEATH(row.truncate(1), "inside a round");
  EXPECT_DEATH(row.extract(), "inside a round");
  EXPECT_DEATH(row.clone(), "prefix of 12 of 10 committed");
  row.round_commit();
  row.reserve(1);
  const KvRow twin = row.clone();
  EXPECT_DEATH(row.advance(1), "has 2 owners");  // the block would be written under the twin
}

TEST(KvPoolDeath, OutlivesItsRows) {
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<KvPool>(test_layout(), 2);
        KvRow row(*pool);
        row.reserve(1);
        pool.reset();
      },
      "a pool of kv bytes ends while rows hold 1 buffers");
}

}  // namespace
}  // namespace outrider
