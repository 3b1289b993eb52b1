#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace protrain {
namespace {

namespace fs = std::filesystem;

class FakeRoot : public ::testing::Test {
 protected:
  FakeRoot() : root_(fs::path(::testing::TempDir()) / ("cgroup_root" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
  }
  ~FakeRoot() override { fs::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(FakeRoot, TheTightestLimitOfTheAncestryCounts) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/a/memory.max", "max\n");
  put("sys/fs/cgroup/a/b/memory.max", "1073741824\n");
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.memory, kGiB);
}

TEST_F(FakeRoot, VersionOneIsReadToo) {
  put("proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n");
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // "none"
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n");
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_EQ(limits.cores, 3.0);
  EXPECT_EQ(limits.memory, 4096);
}

TEST_F(FakeRoot, NoFilesAreNoLimits) {
  EXPECT_FALSE(cgroup_limits(root_).cores);
  EXPECT_FALSE(cgroup_limits(root_).memory);
}

TEST_F(FakeRoot, ALimitAnywhereOnTheWayUpCounts) {
  const std::string group = "/user.slice/job.scope/step_0/task";
  put("proc/self/cgroup", "0::" + group + "\n");
  const std::string folders[] = {"", "/user.slice", "/user.slice/job.scope", "/user.slice/job.scope/step_0", group};
  for (const std::string& tight : folders) {
    for (const std::string& folder : folders) {
      put("sys/fs/cgroup" + folder + "/memory.max", folder == tight ? "3000000000\n" : "5000000000\n");
    }
    EXPECT_EQ(cgroup_limits(root_).memory, 3000000000) << tight;
  }
  put("sys/fs/cgroup/user.slice/memory.high", "2000000000\n");
  EXPECT_EQ(cgroup_limits(root_).memory, 2000000000);
}

TEST_F(FakeRoot, AGroupOutsideTheMountHasTheMountsOwnLimit) {
  put("proc/self/cgroup", "0::/../../kubepods/pod1\n");
  put("sys/fs/cgroup/memory.max", "1073741824\n");
  put("sys/fs/kubepods/pod1/memory.max", "4096\n");  // not ours
  EXPECT_EQ(cgroup_limits(root_).memory, kGiB);
}

TEST_F(FakeRoot, VersionsMixAndTheTighterCounts) {
  put("proc/self/cgroup", "9:hugetlb:/\n7:cpuset,memory:/job\n1:name=systemd:/job\n0::/job\n");
  put("sys/fs/cgroup/cpuset,memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/cpuset,memory/job/memory.stat",
      "cache 7\nrss 4096\nhierarchical_memory_limit 2147483648\ntotal_cache 7\n");
  EXPECT_EQ(cgroup_limits(root_).memory, 2 * kGiB);
  put("sys/fs/cgroup/unified/job/memory.max", "1073741824\n");
  EXPECT_EQ(cgroup_limits(root_).memory, kGiB);
}

TEST(HostMemory, IsNoMoreThanTheMachineHas) {
  EXPECT_LE(host_memory_limit(), physical_memory());
  EXPECT_GT(host_memory_limit(), 0);
}

}  // namespace
}  // namespace protrain
