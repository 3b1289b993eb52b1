#include "base/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "base/cgroup.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

TEST(AvailableMemory, IsWhatTheKernelSaysWithTheProcessesOwnAndPlansLeaveAPart) {
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
  EXPECT_EQ(plannable_host_memory(root), 5400 * kKiB * 31 / 32);  // less than any machine has
  fs::remove_all(root);
}

TEST(HostMemory, ThePeakBeginsAnewWhenAsked) {
  constexpr Bytes kMuch = 64 * kMiB;
  restart_peak();
  const Bytes before = host_memory().peak;
  void* const much = ::mmap(nullptr, kMuch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(much, MAP_FAILED);
  std::memset(much, 'x', kMuch);
  ::munmap(much, kMuch);
  EXPECT_GE(host_memory().peak, before + kMuch / 2);
  restart_peak();
  EXPECT_LT(host_memory().peak, before + kMuch / 2);
}

}  // namespace
}  // namespace protrain
