#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/cgroup.h"
#include "base/error.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

TEST(ThreadPool, CoversEachElementOnceWithStartsAtTheGrain) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    std::mt19937 random(seed);
    for (int threads = 1; threads <= 5; ++threads) {
      ThreadPool pool(threads);
      EXPECT_EQ(pool.threads(), threads);
      for (int round = 0; round < 30; ++round) {
        const auto n = static_cast<std::int64_t>(random() % 1000);
        const auto grain = static_cast<std::int64_t>(1 + random() % 100);
        SCOPED_TRACE(::testing::Message() << "seed " << seed << " n " << n << " grain " << grain);
        std::vector<int> visits(static_cast<std::size_t>(n));  // unguarded: ranges are disjoint, or TSan speaks
        std::atomic<bool> aligned = true;
        pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          if (begin % grain != 0) aligned = false;
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        EXPECT_TRUE(aligned);
        EXPECT_EQ(visits, std::vector<int>(static_cast<std::size_t>(n), 1));
      }
    }
  }
}

TEST(ThreadPool, UsesAllItsThreads) {
  ThreadPool pool(4);
  std::mutex mutex;
  std::vector<std::thread::id> ids;
  pool.parallel_for(4, 1, [&](std::int64_t, std::int64_t) {
    const std::lock_guard lock(mutex);
    ids.push_back(std::this_thread::get_id());
  });
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()) - ids.begin(), 4);
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(3, 1,
                                 [](std::int64_t begin, std::int64_t) {
                                   if (begin == 2) fail(ExitCode::kData, "third share");
                                 }),
               Error);
  std::atomic<std::int64_t> sum = 0;
  pool.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 100);
}

TEST(ThreadPool, SeveralCallersTakeTurns) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum = 0;
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        pool.parallel_for(64, 4, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 50 * 64);
}

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

TEST(Cores, AreAtLeastOneAndNoMoreThanTheMachineHas) {
  EXPECT_GE(allowed_cores(), 1);
  EXPECT_LE(allowed_cores(), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_LE(host_memory_limit(), physical_memory());
  EXPECT_GT(host_memory_limit(), 0);
}

}  // namespace
}  // namespace protrain
