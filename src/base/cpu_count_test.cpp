#include "base/cpu_count.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/test_directory.h"

namespace outrider {
namespace {

class CpuCount : public testing::Test {
 protected:
  CpuFiles files() const {
    return {directory_.path() / "cpus", {directory_.path() / "tree", directory_.path() / "own"}};
  }
  void put_cpu(int cpu, int package, int core) {
    const std::string topology = fmt::format("cpus/cpu{}/topology/", cpu);
    directory_.write(topology + "physical_package_id", fmt::format("{}\n", package));
    directory_.write(topology + "core_id", fmt::format("{}\n", core));
  }
  void put_quota(const std::string& cpu_max) {
    directory_.write("own", "0::/\n");
    directory_.write("tree/cpu.max", cpu_max);
  }
  // Two packages of two cores of two threads; core ids repeat from package to package.
  void put_two_packages() {
    for (int cpu = 0; cpu < 8; ++cpu) put_cpu(cpu, cpu / 4, cpu % 2);
  }
  TestDirectory directory_;
};

TEST_F(CpuCount, CountsTwoThreadsOfACoreOnce) {
  put_two_packages();
  EXPECT_EQ(physical_cores(files(), std::vector{0, 1, 2, 3, 4, 5, 6, 7}), 4);
}

TEST_F(CpuCount, FindsTheLargestCache) {
  EXPECT_EQ(last_cache_bytes(files()), 0u);
  directory_.write("cpus/cpu0/cache/index0/size", "48K\n");
  directory_.write("cpus/cpu0/cache/index1/size", "2M\n");
  EXPECT_EQ(last_cache_bytes(files()), std::size_t{2} << 20);
  directory_.write("cpus/cpu0/cache/index2/size", "307200K\n");
  EXPECT_EQ(last_cache_bytes(files()), std::size_t{300} << 20);
}

TEST_F(CpuCount, CountsOnlyTheCpusOfTheMask) {
  put_two_packages();
  EXPECT_EQ(physical_cores(files(), std::vector{0, 2}), 1);
  EXPECT_EQ(physical_cores(files(), std::vector{0, 2, 5}), 2);
}

TEST_F(CpuCount, TakesACpuWithoutTopologyAsACore) {
  put_cpu(0, 0, 0);
  EXPECT_EQ(physical_cores(files(), std::vector{0, 1, 2}), 3);
}

TEST_F(CpuCount, CutsToTheWholeCpusOfTheQuotaButNotBelowOne) {
  put_two_packages();
  const std::vector all{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(usable_cores(files(), all), 4);
  put_quota("250000 100000");
  EXPECT_EQ(usable_cores(files(), all), 2);
  put_quota("1600000 100000");
  EXPECT_EQ(usable_cores(files(), all), 4);
  put_quota("20000 100000");
  EXPECT_EQ(usable_cores(files(), all), 1);
  EXPECT_EQ(usable_cores(files(), {}), 1);
}

}  // namespace
}  // namespace outrider
