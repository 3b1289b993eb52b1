#include "base/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/cgroup.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

TEST(AvailableMemory, IsWhatTheKernelSaysWithTheProcessesOwn) {
  const fs::path root = fs::path(::testing::TempDir()) / ("host_memory_root" + std::to_string(::getpid()));
  fs::create_directories(root / "proc/self");
  EXPECT_EQ(available_memory(root), physical_memory());
  std::ofstream(root / "proc/meminfo")
      << "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\nBuffers: 3 kB\n";
  EXPECT_EQ(available_memory(root), 5000 * kKiB);
  std::ofstream(root / "proc/self/status") << "VmHWM: 900 kB\nVmRSS: 800 kB\nRssAnon: 300 kB\nRssFile: 400 kB\n"
                                              "RssShmem: 100 kB\n";
  EXPECT_EQ(available_memory(root), 5400 * kKiB);
  EXPECT_EQ(host_memory(root).peak, 900 * kKiB);
  fs::remove_all(root);
}

TEST(AvailableMemory, PlansLeaveSomethingToTheKernel) {
  EXPECT_GT(plannable_host_memory(), 0);
  EXPECT_LT(plannable_host_memory(), host_memory_limit() - host_memory_limit() / (kHostReserve + 1));
}

}  // namespace
}  // namespace protrain
