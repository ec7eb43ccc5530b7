#include "base/cpu_placement.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "base/test_directory.h"

namespace outrider {
namespace {

class CpuPlacement : public testing::Test {
 protected:
  CpuFiles files() const {
    return {directory_.path() / "cpus",
            {directory_.path() / "tree", directory_.path() / "own"},
            directory_.path() / "nodes"};
  }
  // Two packages, each a memory node, of two cores of two threads: the second threads are cpus 4 to 7.
  void put_two_nodes() {
    for (int cpu = 0; cpu < 8; ++cpu) {
      const std::string topology = fmt::format("cpus/cpu{}/topology/", cpu);
      directory_.write(topology + "physical_package_id", fmt::format("{}\n", cpu % 4 / 2));
      directory_.write(topology + "core_id", fmt::format("{}\n", cpu % 2));
    }
    directory_.write("nodes/online", "0-1\n");
    directory_.write("nodes/node0/cpulist", "0-1,4-5\n");
    directory_.write("nodes/node1/cpulist", "2-3,6,7\n");
  }
  TestDirectory directory_;
  const std::vector<int> all_{0, 1, 2, 3, 4, 5, 6, 7};
};

TEST_F(CpuPlacement, GivesEachThreadACoreOfItsOwnWithBothOfItsCpus) {
  put_two_nodes();
  const std::vector<CpuSet> expected{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_EQ(place_threads(files(), all_, 4, Pinning::automatic), expected);
}

TEST_F(CpuPlacement, KeepsToTheAffinityMask) {
  put_two_nodes();
  EXPECT_EQ(place_threads(files(), std::vector{1, 2, 6}, 2, Pinning::automatic), (std::vector<CpuSet>{{1}, {2, 6}}));
}

TEST_F(CpuPlacement, LeavesPoolsThatDoNotUseEveryCoreToTheScheduler) {
  put_two_nodes();
  EXPECT_TRUE(place_threads(files(), all_, 3, Pinning::on).empty());
  EXPECT_TRUE(place_threads(files(), all_, 8, Pinning::on).empty());
  EXPECT_TRUE(place_threads(files(), std::vector{0, 4}, 1, Pinning::on).empty());
}

TEST_F(CpuPlacement, LeavesPoolsUnderAQuotaToTheScheduler) {
  put_two_nodes();
  directory_.write("own", "0::/\n");
  directory_.write("tree/cpu.max", "200000 100000");
  EXPECT_TRUE(place_threads(files(), all_, 2, Pinning::on).empty());
}

TEST_F(CpuPlacement, OnOneNodePinsOnlyWhenAsked) {
  put_two_nodes();
  const std::vector first_node{0, 1, 4, 5};
  EXPECT_TRUE(place_threads(files(), first_node, 2, Pinning::automatic).empty());
  EXPECT_EQ(place_threads(files(), first_node, 2, Pinning::on), (std::vector<CpuSet>{{0, 4}, {1, 5}}));
  EXPECT_TRUE(place_threads(files(), all_, 4, Pinning::off).empty());
}

TEST_F(CpuPlacement, TakesAMachineWithoutNodeFilesAsOneNode) {
  EXPECT_EQ(memory_nodes(files(), all_), std::vector{0});
  EXPECT_EQ(cores_of(files(), std::vector{3, 5}), (std::vector<CpuSet>{{3}, {5}}));
}

TEST_F(CpuPlacement, CountsTheNodesOfTheMaskOnly) {
  put_two_nodes();
  EXPECT_EQ(memory_nodes(files(), all_), (std::vector{0, 1}));
  EXPECT_EQ(memory_nodes(files(), std::vector{6}), std::vector{1});
  directory_.write("nodes/online", "0,1 \n");
  EXPECT_EQ(memory_nodes(files(), all_), (std::vector{0, 1}));
  directory_.write("nodes/online", "garbage\n");
  EXPECT_EQ(memory_nodes(files(), all_), std::vector{0});
}

TEST(Pinning, IsAutoOnOrOff) {
  EXPECT_EQ(pinning_from(nullptr), Pinning::automatic);
  EXPECT_EQ(pinning_from(""), Pinning::automatic);
  EXPECT_EQ(pinning_from("auto"), Pinning::automatic);
  EXPECT_EQ(pinning_from("on"), Pinning::on);
  EXPECT_EQ(pinning_from("off"), Pinning::off);
  EXPECT_THROW(pinning_from("yes"), Error);
}

TEST(PinThisThread, KeepsToTheCpusAndSurvivesOnesThatDoNotExist) {
  const int last = allowed_cpus().back();
  std::thread([last] {
    pin_this_thread(std::vector{last});
    EXPECT_EQ(allowed_cpus(), std::vector{last});
    pin_this_thread(std::vector{1 << 14});
    EXPECT_EQ(allowed_cpus(), std::vector{last});
  }).join();
}

TEST(SpreadOverNodes, LeavesLargeBuffersZeroedAndUsable) {
  AlignedBuffer buffer(std::size_t{8} << 20, MemoryPart::weights);
  for (std::size_t i = 0; i < buffer.size(); i += 4096) ASSERT_EQ(buffer.data()[i], std::byte{0});
  std::memset(buffer.data(), 1, buffer.size());
}

}  // namespace
}  // namespace outrider
