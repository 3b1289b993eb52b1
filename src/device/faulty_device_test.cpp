#include "device/faulty_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/error.h"

namespace protrain {
namespace {

std::unique_ptr<Device> faulty(const DeviceFaults& faults) {
  return make_faulty_device(make_cpu_device({.capacity = kMiB}), faults);
}

TEST(FaultyDevice, DelaysChangeNoResult) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const auto device = faulty({.seed = seed, .longest_delay_seconds = 200e-6});
    std::byte* const arena = device->arena(Tier::kDevice, kMiB);
    const auto first = device->stream("h2d");
    const auto second = device->stream("compute");
    for (int round = 1; round <= 20; ++round) {
      const auto value = static_cast<std::byte>(round);
      second->call([&] { arena[0] = value; });
      first->wait(second->record());
      first->copy(arena + 512, arena, 512);
      second->wait(first->record());
      std::byte got{};
      second->call([&] { got = arena[512]; });
      ASSERT_EQ(got, value);
    }
  }
}

TEST(FaultyDevice, DelaysOnlyTheLanesThatAreNamed) {
  const auto device = faulty({.seed = 5, .lanes = {"d2h"}, .longest_delay_seconds = 2e-3});
  const auto timed = [&](const char* lane) {
    const auto stream = device->stream(lane);
    const auto start = std::chrono::steady_clock::now();
    std::byte a{};
    std::byte b{};
    for (int i = 0; i < 40; ++i) stream->copy(&a, &b, 1);
    stream->synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  EXPECT_GE(timed("d2h"), 0.02);  // 40 delays of 1 ms on average
  EXPECT_LT(timed("h2d"), 0.02);
}

TEST(FaultyDevice, TheNthCopyFailsAndNamesItself) {
  const auto device = faulty({.lanes = {"h2d"}, .fail_copy = 3});
  const auto good = device->stream("compute");
  const auto bad = device->stream("h2d");
  std::vector<std::byte> from(4, std::byte{1});
  std::vector<std::byte> to(4);
  for (int i = 0; i < 4; ++i) good->copy(to.data(), from.data(), 0);
  for (int i = 0; i < 4; ++i) bad->copy(to.data() + i, from.data() + i, 1);
  EXPECT_NO_THROW(good->synchronize());
  try {
    bad->synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("copy 3 failed, on lane h2d"), std::string::npos) << error.what();
  }
  EXPECT_EQ(to, (std::vector<std::byte>{std::byte{1}, std::byte{1}, std::byte{0}, std::byte{0}}));
}

TEST(FaultyDevice, LanesOfTheHostAreLateAndFailToo) {
  const auto late = faulty({.seed = 5, .lanes = {"cpu_update"}, .longest_delay_seconds = 2e-3});
  const auto stream = late->host_stream("cpu_update");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 40; ++i) stream->call([] {});
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0.02);

  const auto device = faulty({.lanes = {"disk_write"}, .fail_copy = 2});
  const auto bad = device->host_stream("disk_write");
  const auto good = device->host_stream("disk_read");
  std::byte from{1}, to{0};
  bad->copy(&to, &from, 1);
  good->copy(&to, &from, 1);
  EXPECT_THROW(bad->copy(&to, &from, 1), Error);
}

TEST(FaultyDevice, PinnedMemoryCanBeRefused) {
  const auto device = faulty({.refuse_pinned = true});
  EXPECT_NE(device->arena(Tier::kPageable, kMiB), nullptr);
  try {
    device->arena(Tier::kPinned, kMiB);
    FAIL() << "granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
  }
}

TEST(FaultyDevice, IsOtherwiseTheDeviceItWraps) {
  const auto device = faulty({});
  EXPECT_EQ(device->kind(), DeviceKind::kCpu);
  EXPECT_EQ(device->capacity(), kMiB);
  const auto stream = device->stream("compute");
  const Event first = stream->record();
  const Event second = stream->record();
  EXPECT_GE(device->seconds_between(first, second), 0);
}

TEST(CudaDevice, WithoutAGpuIsAnErrorThatSaysWhatToDo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "a GPU is here";
  try {
    make_cuda_device(0);
    FAIL() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("device: cpu"), std::string::npos);
  }
}

}  // namespace
}  // namespace protrain
