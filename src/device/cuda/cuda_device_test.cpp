#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/cgroup.h"
#include "base/error.h"
#include "device/device.h"
#include "device/host_mapping.h"

namespace protrain {
namespace {

class CudaHardware : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU with a driver here";
    device_ = make_cuda_device(0);
  }
  std::unique_ptr<Device> device_;
};

TEST_F(CudaHardware, BytesGoThereAndBackOverTwoStreams) {
  constexpr Bytes kBytes = 8 * kMiB;
  std::byte* const on_device = device_->arena(Tier::kDevice, kBytes);
  std::byte* const pinned = device_->arena(Tier::kPinned, 2 * kBytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(on_device) % kAlignment, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned) % kHugePage, 0u);
  for (Bytes i = 0; i < kBytes; ++i) pinned[i] = static_cast<std::byte>(i * 7 % 251);
  const auto up = device_->stream("h2d");
  const auto down = device_->stream("d2h");
  const Event first = up->record();
  up->copy(on_device, pinned, kBytes);
  up->zero(on_device, 512);
  const Event copied = up->record();
  std::thread other([&] {  // lanes are issued from threads of their own
    down->wait(copied);
    down->copy(pinned + kBytes, on_device, kBytes);
    down->synchronize();
  });
  other.join();
  EXPECT_TRUE(copied.ready());
  EXPECT_TRUE(std::all_of(pinned + kBytes, pinned + kBytes + 512, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(std::memcmp(pinned + kBytes + 512, pinned + 512, kBytes - 512), 0);
  EXPECT_GT(device_->seconds_between(first, copied), 0);
}

TEST_F(CudaHardware, AnArenaIsOneAllocationThatTheDriverSees) {
  const Bytes before = device_->memory().in_use;
  device_->arena(Tier::kDevice, 256 * kMiB);
  EXPECT_GE(device_->memory().in_use - before, 256 * kMiB);
  EXPECT_LE(device_->capacity(), device_->memory().total - 256 * kMiB);
  EXPECT_THROW(device_->arena(Tier::kDevice, kMiB), InternalError);
}

TEST_F(CudaHardware, TooLargeAnArenaDoesNotFitAndSaysSo) {
  try {
    device_->arena(Tier::kDevice, device_->memory().total + kGiB);
    FAIL() << "fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
  }
  EXPECT_NE(device_->arena(Tier::kDevice, kMiB), nullptr) << "the refusal left an error behind";
}

TEST_F(CudaHardware, PinnedMemoryIsKnownToTheDriver) {
  std::byte* const pinned = device_->arena(Tier::kPinned, 3 * kMiB);
  std::byte* const pageable = device_->arena(Tier::kPageable, 3 * kMiB);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, pinned + 3 * kMiB - 1), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, pageable), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST_F(CudaHardware, ACallIssuesToTheStreamOnTheCallersThread) {
  std::byte* const on_device = device_->arena(Tier::kDevice, kMiB);
  std::byte* const pinned = device_->arena(Tier::kPinned, kMiB);
  const auto stream = device_->stream("compute");
  stream->call([&] { cudaMemsetAsync(on_device, 3, 512, static_cast<cudaStream_t>(stream->native())); });
  stream->copy(pinned, on_device, 512);
  stream->synchronize();
  EXPECT_EQ(pinned[511], std::byte{3});
}

TEST_F(CudaHardware, EventsOfHostStreamsStandOnTheDevicesClock) {
  const auto lane = device_->stream("compute");
  const auto host = device_->host_stream("cpu_update");
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  for (int round = 0; round < 2; ++round) {  // events after the anchor of the first round, then before it
    const Event first = lane->record();
    first.wait();
    pause();
    host->wait(first);
    const Event second = host->record();
    lane->wait(second);
    pause();
    const Event third = lane->record();
    third.wait();
    const double to_host = device_->seconds_between(first, second), from_host = device_->seconds_between(second, third);
    EXPECT_GE(to_host, 0.0199);
    EXPECT_GE(from_host, 0.0199);
    EXPECT_NEAR(to_host + from_host, device_->seconds_between(first, third), 2e-4);
    EXPECT_NEAR(device_->seconds_between(second, first), -to_host, 1e-6);
  }
}

// Slow, so only where much memory is: what registration of a whole host must not fail at.
TEST_F(CudaHardware, MostOfTheHostCanBePinnedAndCopiedFromAnywhere) {
  constexpr Bytes kPart = 64 * kMiB;
  const Bytes bytes = host_memory_limit() * 3 / 4 / kHugePage * kHugePage;
  std::byte* const pinned = device_->arena(Tier::kPinned, bytes);
  std::byte* const on_device = device_->arena(Tier::kDevice, kPart);
  const auto stream = device_->stream("h2d");
  for (const Bytes offset : {Bytes{0}, bytes / 2 / kAlignment * kAlignment, bytes - kPart}) {
    pinned[offset] = pinned[offset + kPart - 1] = std::byte{5};
    stream->copy(on_device, pinned + offset, kPart);
    stream->zero(pinned + offset, kPart);
    stream->copy(pinned + offset, on_device, kPart);
    stream->synchronize();
    EXPECT_EQ(pinned[offset], std::byte{5});
    EXPECT_EQ(pinned[offset + kPart - 1], std::byte{5});
  }
}

TEST_F(CudaHardware, AskingForWorkThatGoesOnLeavesNoErrorBehind) {
  constexpr Bytes kBytes = 64 * kMiB;
  std::byte* const on_device = device_->arena(Tier::kDevice, kBytes);
  const auto stream = device_->stream("compute");
  for (int i = 0; i < 500; ++i) stream->zero(on_device, kBytes);
  const Event event = stream->record();
  EXPECT_FALSE(event.ready());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  event.wait();
  EXPECT_TRUE(event.ready());
  device_->seconds_between(event, make_host_stream()->record());  // sets the two clocks side by side
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaHardware, AnIndexBeyondTheLastIsAnErrorOfTheConfig) {
  try {
    make_cuda_device(cuda_device_count());
    FAIL() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
  }
}

}  // namespace
}  // namespace protrain
