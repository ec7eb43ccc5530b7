#include "state/prefix_store.h"

#include <gtest/gtest.h>

#include "state/test_prefix.h"
#include "state/test_programs.h"

namespace outrider {
namespace {

class PrefixStoreOf : public testing::TestWithParam<StoreKind> {
 protected:
  PrefixRig rig_{GetParam(), 20, 6};
};

TEST_P(PrefixStoreOf, RestoresTheLongestBoundaryOfEqualTokens) {
  const RowModel ids = ids_from(1, 300);
  rig_.publish(rig_.row_of(ids), {128, 256});
  EXPECT_EQ(rig_.restored_tokens(ids), 256);
  EXPECT_EQ(rig_.restored_tokens(joined(first_of(ids, 256), ids_from(900, 100))), 256);
  EXPECT_EQ(rig_.restored_tokens(first_of(ids, 255)), rig_.any_block() ? 192 : 128);
  EXPECT_EQ(rig_.restored_tokens(first_of(ids, 127)), rig_.any_block() ? 64 : 0);
  EXPECT_EQ(rig_.restored_tokens(ids_from(2, 300)), 0);
  EXPECT_EQ(rig_.restored_tokens({}), 0);
  EXPECT_EQ(rig_.store().counters().lookups, 6);
  EXPECT_EQ(rig_.store().counters().hits, rig_.any_block() ? 4 : 3);
}

TEST_P(PrefixStoreOf, PromptsThatDifferInABlocksFirstTokenShareTheBlocksBeforeIt) {
  const RowModel one = ids_from(1, 256);
  RowModel other = one;
  other[128] = 4711;
  rig_.publish(rig_.row_of(one), {64, 128, 192, 256});
  const OfferedRow row = rig_.row_of(other);
  rig_.publish(row, {64, 128, 192, 256});
  EXPECT_EQ(rig_.store().blocks(), 6);
  EXPECT_EQ(rig_.restored_tokens(one), 256);
  EXPECT_EQ(rig_.restored_tokens(other), 256);
}

TEST_P(PrefixStoreOf, RestoredRowsWriteBlocksOfTheirOwn) {
  const RowModel ids = ids_from(1, 128);
  rig_.publish(rig_.row_of(ids), {128});
  const std::int64_t used = rig_.pool().kv().used_blocks();
  std::optional<PrefixStore::Hit> hit = rig_.restore(ids);
  ASSERT_TRUE(hit);
  EXPECT_EQ(rig_.pool().kv().used_blocks(), used);  // shared
  OfferedRow row{std::move(hit->row), std::move(hit->draft), joined(ids, ids_from(700, 72))};
  rig_.extend(row, 200);
  EXPECT_EQ(rig_.restored_tokens(ids), 128);
  if (rig_.has_head()) append_ids(*row.draft, rig_.draft_pool().layout(), PrefixRig::draft_ids(ids_from(700, 72)));
  rig_.publish(row, {192});
  EXPECT_EQ(rig_.restored_tokens(row.ids), 192);
}

// Keys that collide, as those of SHA-256 do not: the tokens decide.
TEST_P(PrefixStoreOf, OtherTokensUnderTheSameKeyAreAMiss) {
  const RowModel ids = ids_from(1, 64), others = ids_from(300, 64);
  rig_.publish(rig_.row_of(ids), {64});
  PrefixChain chain(rig_.root);
  const std::vector<std::int32_t> tokens = PrefixRig::tokens_of(ids), foreign = PrefixRig::tokens_of(others);
  EXPECT_FALSE(rig_.store().restore(chain.keys(tokens, 1), foreign));
  const OfferedRow row = rig_.row_of(others);
  const std::vector<float> hidden = PrefixRig::hidden_at(others, 64);
  const PrefixCheckpoint checkpoint{64, rig_.has_head() ? std::span<const float>(hidden) : std::span<const float>()};
  PrefixOffer offer{chain.keys(tokens, 1), foreign, &row.state, row.draft ? &*row.draft : nullptr, {}, 0};
  if (!rig_.any_block()) offer.checkpoints = {&checkpoint, 1};
  rig_.store().prepare_publish(offer).commit();
  EXPECT_EQ(rig_.restored_tokens(ids), 64);
  EXPECT_EQ(rig_.store().blocks(), 1);
}

TEST_P(PrefixStoreOf, AChangeThatIsNotCommittedChangesNothing) {
  const RowModel ids = ids_from(1, 128);
  const OfferedRow row = rig_.row_of(ids);
  const std::int64_t used = rig_.pool().kv().used_blocks();
  rig_.prepare(row, {128}).dispose();
  EXPECT_EQ(rig_.restored_tokens(ids), 0);
  EXPECT_EQ(rig_.store().blocks() + rig_.store().checkpoints(), 0);
  EXPECT_EQ(rig_.pool().kv().used_blocks(), used);
}

TEST_P(PrefixStoreOf, TheLeastRecentlyUsedEntryGivesWay) {
  const RowModel a = ids_from(1, 320), b = ids_from(1000, 320), c = ids_from(2000, 960);
  rig_.publish(rig_.row_of(a), {320});
  rig_.publish(rig_.row_of(b), {320});
  EXPECT_EQ(rig_.restored_tokens(a), 320);
  rig_.publish(rig_.row_of(c), {960});  // 25 blocks of 20: five or more have to go
  EXPECT_EQ(rig_.restored_tokens(c), 960);
  EXPECT_EQ(rig_.restored_tokens(a), 320);
  EXPECT_EQ(rig_.restored_tokens(b), 0);
  EXPECT_LE(rig_.store().blocks(), 20);
}

TEST_P(PrefixStoreOf, EntriesInUseStayAndWhatDoesNotFitBesideThemIsRefused) {
  const RowModel a = ids_from(1, 320), c = ids_from(2000, 1280);
  rig_.publish(rig_.row_of(a), {320});
  {
    const std::optional<PrefixStore::Hit> in_use = rig_.restore(a);
    rig_.publish(rig_.row_of(c), {1280});  // 20 blocks beside 5
    EXPECT_EQ(rig_.restored_tokens(c), 0);
    EXPECT_EQ(rig_.restored_tokens(a), 320);
    EXPECT_EQ(rig_.store().counters().refused, 1);
  }
  rig_.publish(rig_.row_of(c), {1280});
  EXPECT_EQ(rig_.restored_tokens(c), 1280);
  EXPECT_EQ(rig_.restored_tokens(a), 0);
}

TEST_P(PrefixStoreOf, AnEntryOverTheCapIsNotStored) {
  const RowModel a = ids_from(1, 64);
  rig_.publish(rig_.row_of(a), {64});
  rig_.publish(rig_.row_of(ids_from(500, 64 * 60)), {64 * 60});
  EXPECT_EQ(rig_.store().counters().refused, 1);
  EXPECT_EQ(rig_.store().counters().evicted, 0);
  EXPECT_EQ(rig_.restored_tokens(a), 64);
}

TEST_P(PrefixStoreOf, ItsEndGivesEverythingBack) {
  rig_.publish(rig_.row_of(ids_from(1, 320)), {64, 320});
  EXPECT_GT(rig_.pool().kv().used_blocks(), 0);
  rig_.end_store();
  EXPECT_EQ(rig_.pool().kv().used_blocks(), 0);
  EXPECT_EQ(rig_.draft_pool().used_blocks(), 0);
}

TEST_P(PrefixStoreOf, AnOfferTellsWhetherTheCheckpointAtItsEndIsNew) {
  const bool keeps_any = !rig_.any_block();
  const RowModel a = ids_from(1, 320);
  const auto left_end = [&](const RowModel& ids, const std::vector<std::int64_t>& positions) {
    bool left = true;
    const OfferedRow row = rig_.row_of(ids);
    PreparedStateChange change = rig_.prepare(row, positions, 0, &left);
    change.commit();
    return left;
  };
  EXPECT_EQ(left_end(a, {64, 128}), keeps_any);
  EXPECT_FALSE(left_end(a, {64, 128}));
  EXPECT_EQ(left_end(a, {64, 128, 192}), keeps_any);
  EXPECT_FALSE(left_end(ids_from(500, 64 * 60), {64 * 60})) << "refused whole";
}

INSTANTIATE_TEST_SUITE_P(Kinds, PrefixStoreOf,
                         testing::Values(StoreKind::plain, StoreKind::hybrid, StoreKind::hybrid_with_head),
                         [](const auto& info) {
                           return std::string(info.param == StoreKind::plain    ? "plain"
                                              : info.param == StoreKind::hybrid ? "hybrid"
                                                                                : "head");
                         });

TEST(PrefixStore, CheckpointsGoBeforeTheBlocksTheyNeedAndTheLastOneLast) {
  PrefixRig rig(StoreKind::hybrid, 4, 3);
  const RowModel ids = ids_from(1, 256);
  rig.publish(rig.row_of(ids), {64, 128, 256});
  EXPECT_EQ(rig.store().make_room_for_checkpoints(1), 1);
  EXPECT_EQ(rig.store().checkpoints(), 2);
  EXPECT_EQ(rig.store().blocks(), 4);
  EXPECT_EQ(rig.restored_tokens(first_of(ids, 64)), 0);
  EXPECT_EQ(rig.store().make_room_for_checkpoints(2), 2);
  EXPECT_EQ(rig.store().blocks(), 4);
  EXPECT_EQ(rig.restored_tokens(first_of(ids, 192)), 0);
  EXPECT_EQ(rig.restored_tokens(ids), 256);
}

TEST(PrefixStore, BlocksThatLeadToNoCheckpointGoWithIt) {
  PrefixRig rig(StoreKind::hybrid, 8, 2);
  rig.publish(rig.row_of(ids_from(1, 256)), {64, 256});
  EXPECT_EQ(rig.store().blocks(), 4);
  rig.publish(rig.row_of(ids_from(900, 448)), {448});
  EXPECT_EQ(rig.restored_tokens(ids_from(900, 448)), 448);
  EXPECT_LE(rig.store().blocks(), 8);
  EXPECT_EQ(rig.store().blocks(), 7 + rig.restored_tokens(ids_from(1, 256)) / 64);
}

TEST(PrefixStore, ASupersededCheckpointGoesUnlessSomebodyWasRestoredAtIt) {
  PrefixRig rig(StoreKind::hybrid, 20, 6);
  OfferedRow row{StateRow(rig.pool()), std::nullopt, ids_from(1, 256)};
  const auto go_on = [&](std::int64_t end, std::int64_t superseded) {
    rig.extend(row, end);
    rig.publish(row, {end}, superseded);
    row.state.drop_checkpoints();
  };
  go_on(64, 0);
  go_on(128, 64);
  EXPECT_EQ(rig.store().checkpoints(), 1);
  EXPECT_EQ(rig.restored_tokens(first_of(row.ids, 100)), 0);
  EXPECT_EQ(rig.restored_tokens(first_of(row.ids, 190)), 128);
  go_on(192, 128);
  EXPECT_EQ(rig.store().checkpoints(), 2);
}

TEST(PrefixStore, BytesAreSplitBetweenBlocksAndTheirCheckpoints) {
  PrefixParts parts{.block_bytes = 1000, .draft_block_bytes = 100, .hidden_width = 8, .slot_bytes = 5000};
  const std::uint64_t node = parts.node_bytes(), checkpoint = parts.checkpoint_bytes();
  EXPECT_GT(node, 1100U);
  EXPECT_GT(checkpoint, 5032U);
  for (const std::uint64_t bytes : {node + checkpoint, 10 * checkpoint, std::uint64_t{1} << 30}) {
    const PrefixCapacity capacity = prefix_capacity(parts, bytes);
    EXPECT_GE(capacity.blocks, 1);
    EXPECT_GE(capacity.checkpoints, 1);
    const std::uint64_t used = static_cast<std::uint64_t>(capacity.blocks) * node +
                               static_cast<std::uint64_t>(capacity.checkpoints) * checkpoint;
    EXPECT_LE(used, bytes);
    EXPECT_GT(used + node, bytes);
  }
  EXPECT_EQ(prefix_capacity(parts, node + checkpoint - 1).blocks, 0);
  EXPECT_EQ(prefix_capacity({.block_bytes = 1000}, 10 * PrefixParts{.block_bytes = 1000}.node_bytes() - 1).blocks, 9);
}

TEST(PrefixStore, ScopesDoNotSeeEachOther) {
  const Sha256Digest base = prefix_root("m", {});
  EXPECT_EQ(base, prefix_root("m", {"base", "", ""}));
  for (const PrefixScope& scope :
       {PrefixScope{"a", "", ""}, PrefixScope{"base", "t", ""}, PrefixScope{"base", "", "t"}})
    EXPECT_NE(base, prefix_root("m", scope));
  EXPECT_NE(prefix_root("m", {"base", "t", ""}), prefix_root("m", {"base", "", "t"}));
  EXPECT_NE(base, prefix_root("n", {}));
}

TEST(PrefixStore, WhatRowsArePlannedWithIsChargedToThemAndTheRestToThePrefixes) {
  PrefixRig rig(StoreKind::hybrid, 6, 2, 4);
  rig.publish(rig.row_of(ids_from(1, 256)), {256});
  const std::size_t kv = memory_use(MemoryPart::kv).now_bytes, prefix = memory_use(MemoryPart::prefix).now_bytes;
  EXPECT_EQ(kv, 4 * rig.parts().block_bytes);
  const OfferedRow row = rig.row_of(ids_from(900, 192));  // beside the four blocks that stay
  EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, kv);
  EXPECT_EQ(memory_use(MemoryPart::prefix).now_bytes, prefix + 3 * rig.parts().block_bytes);
}

// Random publishing, restoring and holding in a store that is too small, beside a model that knows what was published
// and what is held.
template <StoreKind kKind, std::int64_t kBlocks, std::int64_t kCheckpoints>
class StoreMachine {
 public:
  static constexpr int kActions = 4;

  void apply(const ProgramStep& step) {
    const auto [action, a, b] = step;
    switch (action) {
      case 0: {
        const RowModel ids = prompt(a);
        const std::int64_t last = 1 + b % (std::ssize(ids) / 64);
        std::vector<std::int64_t> positions;
        for (std::int64_t p = 1; p < last; ++p)
          if ((b >> 4 >> p) % 2 == 0) positions.push_back(64 * p);
        positions.push_back(64 * last);
        rig_.publish(rig_.row_of(ids), positions, b % 3 == 0 ? positions.front() : 0);
        for (std::int64_t p = 1; p <= last; ++p) {
          const bool boundary = rig_.any_block() || std::count(positions.begin(), positions.end(), 64 * p) > 0;
          if (boundary) published_.insert(first_of(ids, 64 * p));
        }
        superseding_ = superseding_ || b % 3 == 0;
        return;
      }
      case 1: {
        const RowModel ids = prompt(a);
        std::optional<PrefixStore::Hit> hit = rig_.restore(ids);
        const std::int64_t tokens = hit ? hit->tokens : 0;
        REQUIRE(!hit || rig_.holds(*hit, ids));
        REQUIRE(tokens == 0 || published_.contains(first_of(ids, tokens)));
        std::int64_t longest = 0;
        for (std::int64_t p = 64; p <= std::ssize(ids); p += 64)
          if (published_.contains(first_of(ids, p))) longest = p;
        const PrefixStore::Counters& counters = rig_.store().counters();
        if (counters.evicted == 0 && counters.refused == 0 && !superseding_) REQUIRE(tokens == longest);
        if (hit && b % 2 == 0) held_.emplace_back(first_of(ids, tokens), std::move(*hit));
        return;
      }
      case 2:
        if (!held_.empty()) held_.erase(held_.begin() + a % held_.size());
        return;
      case 3:
        REQUIRE(rig_.store().make_room_for_checkpoints(b % 3) <= b % 3);
        return;
    }
  }

  void check() {
    PrefixStore& store = rig_.store();
    REQUIRE(store.blocks() <= kBlocks && store.checkpoints() <= kCheckpoints);
    for (const auto& [ids, hit] : held_) {
      REQUIRE(outrider::holds(hit.row.kv(), test_layout(), ids));
      REQUIRE(rig_.restored_tokens(ids) == std::ssize(ids));  // in use: not evicted
    }
    if (!held_.empty()) return;
    REQUIRE(rig_.pool().kv().used_blocks() == store.blocks());
    REQUIRE(rig_.pool().recurrent() == nullptr || rig_.pool().recurrent()->used_slots() == store.checkpoints());
  }

 private:
  // One of few prompts of one to five blocks, whose beginnings are often equal.
  static RowModel prompt(std::uint32_t choice) {
    RowModel ids;
    for (std::uint32_t block = 0; block < 1 + choice % 5; ++block)
      ids = joined(std::move(ids), ids_from(1000 * block + 100 * (choice >> 8 >> block & 1), 64));
    return ids;
  }

  PrefixRig rig_{kKind, kBlocks, kCheckpoints};
  std::set<RowModel> published_;
  std::vector<std::pair<RowModel, PrefixStore::Hit>> held_;
  bool superseding_ = false;
};

TEST(PrefixStoreProperty, TinyAndLargeStoresOfEveryKindKeepTheirPromises) {
  const auto check = [](auto machine) {
    using Machine = typename decltype(machine)::type;
    EXPECT_TRUE(rc::check([] { run_random_program<Machine>(Machine::kActions); }));
  };
  check(std::type_identity<StoreMachine<StoreKind::plain, 7, 0>>());
  check(std::type_identity<StoreMachine<StoreKind::hybrid, 7, 3>>());
  check(std::type_identity<StoreMachine<StoreKind::hybrid_with_head, 4, 2>>());
  check(std::type_identity<StoreMachine<StoreKind::plain, 100, 0>>());
  check(std::type_identity<StoreMachine<StoreKind::hybrid_with_head, 100, 100>>());
}

}  // namespace
}  // namespace outrider
