#include "state/shared_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace outrider {
namespace {

constexpr std::size_t kBytes = std::size_t{3} << 19;  // the block of a 1 B model: no whole large page
constexpr std::int64_t kCapacity = 45;

std::size_t charged() { return memory_use(MemoryPart::kv).now_bytes; }

bool all_equal(std::span<const std::byte> bytes, int value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

class SharedBufferPool : public testing::Test {
 protected:
  ~SharedBufferPool() override { drop_all(); }
  SharedBuffer* take() { return taken_.emplace_back(pool_.take(BufferFill::zeroed)); }
  void drop(std::size_t index) {
    pool_.drop_owner(taken_[index]);
    taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void drop_all() {
    while (!taken_.empty()) drop(taken_.size() - 1);
  }

  const std::size_t before_ = charged();
  SharedBuffers pool_{kBytes, MemoryPart::kv, {kCapacity}};
  std::vector<SharedBuffer*> taken_;
};

TEST_F(SharedBufferPool, ChargesAtMostAQuarterAheadAndNeverBeyondItsCapacity) {
  for (std::int64_t n = 1; n <= kCapacity; ++n) {
    take();
    const std::size_t now = charged() - before_, used = static_cast<std::size_t>(n) * kBytes;
    ASSERT_GE(now, used);
    ASSERT_LE(now, used + used / 4);
    ASSERT_LE(now, static_cast<std::size_t>(kCapacity) * kBytes);
  }
  EXPECT_EQ(pool_.free(), 0);
  EXPECT_EQ(charged() - before_, static_cast<std::size_t>(kCapacity) * kBytes);
}

TEST_F(SharedBufferPool, BuffersOfALongContextLieSideBySideOnLargePages) {
  std::size_t on_large_pages = 0;
  std::int64_t beside = 0;
  const std::byte* end = nullptr;
  for (std::int64_t n = 0; n < kCapacity; ++n) {
    const SharedBuffer* buffer = take();
    const AlignedBuffer& slab = buffer->slab->memory;
    if (buffer->memory.data() == end) ++beside;
    if (buffer->memory.data() == slab.data() && slab.size() >= AlignedBuffer::kLargePage) {  // the first one of a slab
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab.data()) % AlignedBuffer::kLargePage, 0u);
      on_large_pages += slab.size() / AlignedBuffer::kLargePage * AlignedBuffer::kLargePage;
    }
    end = buffer->memory.data() + kBytes;
  }
  EXPECT_GT(beside, kCapacity / 2);
  EXPECT_GT(on_large_pages * 3, kCapacity * kBytes * 2);
}

TEST_F(SharedBufferPool, BuffersAreDistinctZeroedAndZeroedAgainWhenReused) {
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t n = 0; n < 20; ++n) ASSERT_TRUE(all_equal(take()->memory, 0));
    for (std::size_t i = 0; i < taken_.size(); ++i)
      std::fill(taken_[i]->memory.begin(), taken_[i]->memory.end(), static_cast<std::byte>(i + 1));
    for (std::size_t i = 0; i < taken_.size(); ++i)
      ASSERT_TRUE(all_equal(taken_[i]->memory, static_cast<int>(i + 1))) << "buffer " << i;
    drop_all();
  }
}

TEST_F(SharedBufferPool, TrimKeepsTheSlabsOfHeldBuffersAlone) {
  for (std::int64_t n = 0; n < kCapacity; ++n) take();
  SharedBuffer* const held = taken_.back();
  std::fill(held->memory.begin(), held->memory.end(), std::byte{7});
  ASSERT_GT(held->slab->count, 1);
  while (taken_.size() > 1) drop(0);
  pool_.trim();
  EXPECT_EQ(charged() - before_, held->slab->memory.size());
  EXPECT_TRUE(all_equal(held->memory, 7));
  // The others of its slab are handed out again before anything is allocated.
  for (std::int64_t n = 1; n < held->slab->count; ++n) EXPECT_EQ(take()->slab, held->slab);
  EXPECT_EQ(charged() - before_, held->slab->memory.size());
  EXPECT_NE(take()->slab, held->slab);
  drop_all();
  pool_.trim();
  EXPECT_EQ(charged(), before_);
}

// Sizes that are no whole cache lines stand alone, so that each begins on one.
TEST(SharedBuffers, OfOddSizesBeginOnACacheLine) {
  SharedBuffers pool(100, MemoryPart::kv, {40});
  std::vector<SharedBuffer*> taken;
  for (int i = 0; i < 40; ++i) {
    taken.push_back(pool.take(BufferFill::zeroed));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken.back()->memory.data()) % AlignedBuffer::kLine, 0u);
    EXPECT_EQ(taken.back()->memory.size(), 100u);
  }
  for (SharedBuffer* buffer : taken) pool.drop_owner(buffer);
}

}  // namespace
}  // namespace outrider
