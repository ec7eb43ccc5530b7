#include "base/cgroup.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/test_directory.h"

namespace outrider {
namespace {

class CgroupTest : public testing::Test {
 protected:
  CgroupFiles files() const { return {directory_.path() / "tree", directory_.path() / "own"}; }
  void put(const std::string& file, const std::string& text) { directory_.write(file, text); }
  TestDirectory directory_;
};

TEST_F(CgroupTest, NoFilesMeansNoLimit) {
  EXPECT_EQ(cpu_quota(files()), std::nullopt);
  EXPECT_EQ(memory_limit(files()), std::nullopt);
}

TEST_F(CgroupTest, ReadsTheSecondVersion) {
  put("own", "0::/user.slice/app\n");
  put("tree/user.slice/app/cpu.max", "150000 100000\n");
  put("tree/user.slice/app/memory.max", "1073741824\n");
  EXPECT_EQ(cpu_quota(files()), 1.5);
  EXPECT_EQ(memory_limit(files()), 1073741824u);
}

TEST_F(CgroupTest, TakesTheTightestLimitOnTheWayToTheRoot) {
  put("own", "0::/a/b/c\n");
  put("tree/a/cpu.max", "200000 100000\n");
  put("tree/a/b/cpu.max", "400000 100000\n");
  put("tree/a/b/c/cpu.max", "max 100000\n");
  put("tree/a/b/memory.max", "5000\n");
  put("tree/a/b/c/memory.max", "max\n");
  EXPECT_EQ(cpu_quota(files()), 2.0);
  EXPECT_EQ(memory_limit(files()), 5000u);
}

TEST_F(CgroupTest, ReadsTheVisibleRootWhereTheOwnPathIsTheHosts) {
  put("own", "0::/../../docker/0123\n");
  put("tree/cpu.max", "300000 100000\n");
  put("tree/memory.max", "7000\n");
  EXPECT_EQ(cpu_quota(files()), 3.0);
  EXPECT_EQ(memory_limit(files()), 7000u);
}

TEST_F(CgroupTest, ReadsTheFirstVersionUnderEitherName) {
  put("own", "12:memory:/app\n4:cpu,cpuacct:/app\n3:cpuset:/app\n0::/system.slice\n");
  put("tree/cpu,cpuacct/app/cpu.cfs_quota_us", "250000\n");
  put("tree/cpu,cpuacct/app/cpu.cfs_period_us", "100000\n");
  put("tree/memory/app/memory.limit_in_bytes", "9000\n");
  EXPECT_EQ(cpu_quota(files()), 2.5);
  EXPECT_EQ(memory_limit(files()), 9000u);
  put("tree/cpu/cpu.cfs_quota_us", "50000\n");
  put("tree/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(files()), 0.5);
}

TEST_F(CgroupTest, TakesMinusOneAndBrokenFilesAsNoLimit) {
  put("own", "4:cpu:/\nnonsense\n0::/\n");
  put("tree/cpu/cpu.cfs_quota_us", "-1\n");
  put("tree/cpu/cpu.cfs_period_us", "100000\n");
  put("tree/cpu.max", "150000\n");
  put("tree/memory.max", "12x\n");
  EXPECT_EQ(cpu_quota(files()), std::nullopt);
  EXPECT_EQ(memory_limit(files()), std::nullopt);
}

}  // namespace
}  // namespace outrider
