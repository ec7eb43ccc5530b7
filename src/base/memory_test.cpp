#include "base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>

#include "base/error.h"

namespace outrider {
namespace {

// Below and above the size from which a buffer is a mapping of its own.
constexpr std::size_t kSmall = 1000;
constexpr std::size_t kLarge = std::size_t{3} << 20;

TEST(AlignedBuffer, IsZeroedAndAligned) {
  for (const std::size_t bytes : {std::size_t{1}, kSmall, kLarge})
    for (const std::size_t alignment :
         {std::size_t{64}, std::size_t{4096}, std::size_t{1} << 16, AlignedBuffer::kLargePage}) {
      AlignedBuffer buffer(bytes, MemoryPart::scratch, alignment);
      ASSERT_EQ(buffer.size(), bytes);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment, 0u);
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
      std::memset(buffer.data(), 0xff, bytes);  // under a sanitizer: all of it is ours
    }
}

TEST(AlignedBuffer, ViewsItsBytesAsValues) {
  AlignedBuffer buffer(10, MemoryPart::scratch);
  EXPECT_EQ(buffer.as<float>().size(), 2u);
  buffer.as<float>()[1] = 1.5f;
  EXPECT_EQ(const_cast<const AlignedBuffer&>(buffer).as<float>()[1], 1.5f);
}

TEST(AlignedBuffer, ChargesItsPartWhileItLives) {
  const std::size_t kv = memory_use(MemoryPart::kv).now_bytes;
  const std::size_t all = memory_use().now_bytes;
  const std::size_t scratch = memory_use(MemoryPart::scratch).now_bytes;
  {
    AlignedBuffer small(kSmall, MemoryPart::kv);
    const AlignedBuffer large(kLarge, MemoryPart::kv);
    EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, kv + kSmall + kLarge);
    EXPECT_EQ(memory_use().now_bytes, all + kSmall + kLarge);
    EXPECT_EQ(memory_use(MemoryPart::scratch).now_bytes, scratch);
    AlignedBuffer moved = std::move(small);
    EXPECT_EQ(small.data(), nullptr);  // NOLINT: the state after a move is the subject
    EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, kv + kSmall + kLarge);
    moved = AlignedBuffer(10, MemoryPart::kv);
    EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, kv + 10 + kLarge);
  }
  EXPECT_EQ(memory_use(MemoryPart::kv).now_bytes, kv);
  EXPECT_EQ(memory_use().now_bytes, all);
}

TEST(MemoryUse, RemembersThePeakUntilItIsReset) {
  reset_memory_peaks();
  const std::size_t base = memory_use(MemoryPart::weights).now_bytes;
  {
    const AlignedBuffer buffer(kLarge, MemoryPart::weights);
  }
  {
    const AlignedBuffer buffer(kSmall, MemoryPart::weights);
  }
  EXPECT_EQ(memory_use(MemoryPart::weights).peak_bytes, base + kLarge);
  EXPECT_GE(memory_use().peak_bytes, base + kLarge);
  reset_memory_peaks();
  EXPECT_EQ(memory_use(MemoryPart::weights).peak_bytes, base);
}

TEST(AlignedBuffer, RefusesWhatTheSystemLacksWithTheNumber) {
  for (const std::size_t bytes : {std::size_t{1} << 60, std::numeric_limits<std::size_t>::max()}) {
    const std::size_t before = memory_use().now_bytes;
    try {
      const AlignedBuffer buffer(bytes, MemoryPart::kv);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::memory);
      EXPECT_EQ(error.what(), fmt::format("the system refused {} bytes for kv", bytes));
      EXPECT_FALSE(error.hint().empty());
    }
    EXPECT_EQ(memory_use().now_bytes, before);
  }
}

// Also where the system gives large pages: a touch never makes more resident than the buffer has.
TEST(AlignedBuffer, OnLargePagesIsResidentWhereItIsTouchedAndNowhereElse) {
  const auto resident = [] {
    std::ifstream in("/proc/self/statm");
    std::size_t all = 0, pages = 0;
    in >> all >> pages;
    return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  };
  constexpr std::size_t kSlack = std::size_t{512} << 10;  // what reading the file itself may take
  AlignedBuffer buffer(kLarge + AlignedBuffer::kLargePage, MemoryPart::scratch, AlignedBuffer::kLargePage);
  const std::size_t before = resident();
  buffer.data()[0] = std::byte{1};
  EXPECT_LE(resident(), before + AlignedBuffer::kLargePage + kSlack);
  std::memset(buffer.data(), 1, buffer.size());
  EXPECT_LE(resident(), before + buffer.size() + kSlack);
  EXPECT_GE(resident() + kSlack, before + buffer.size());
}

TEST(AlignedBuffer, OfNoBytesIsEmpty) {
  const AlignedBuffer none(0, MemoryPart::kv);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(none.size(), 0u);
}

TEST(ProcessMemory, GrowsWithTouchedPagesAndStaysBelowTheMachines) {
  const std::size_t before = process_peak_bytes();
  EXPECT_GT(before, 0u);
  AlignedBuffer buffer(std::size_t{64} << 20, MemoryPart::scratch);
  EXPECT_LT(process_peak_bytes(), before + (std::size_t{32} << 20));  // untouched pages cost nothing
  std::memset(buffer.data(), 1, buffer.size());
  EXPECT_GE(process_peak_bytes(), std::size_t{64} << 20);
  EXPECT_GE(usable_memory_bytes(), process_peak_bytes());
}

TEST(MemoryCharge, CountsUntilItIsDestroyedWhereverItMoves) {
  const std::size_t before = memory_use(MemoryPart::weights).now_bytes;
  const auto charged = [&] { return memory_use(MemoryPart::weights).now_bytes - before; };
  {
    MemoryCharge first(1000, MemoryPart::weights);
    EXPECT_EQ(charged(), 1000u);
    MemoryCharge second(std::move(first));
    EXPECT_EQ(charged(), 1000u);
    second = MemoryCharge(30, MemoryPart::weights);
    EXPECT_EQ(charged(), 30u);
    EXPECT_EQ(second.bytes(), 30u);
  }
  EXPECT_EQ(charged(), 0u);
}

}  // namespace
}  // namespace outrider
