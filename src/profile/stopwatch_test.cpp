#include "profile/stopwatch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/error.h"

namespace protrain::profile {
namespace {

TEST(Stopwatch, MedianIsTheMiddleOrTheSmallerOfTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2);
  EXPECT_EQ(median({7}), 7);
  EXPECT_THROW(median({}), InternalError);
}

TEST(Stopwatch, FitsTheLineThroughTwoTimes) {
  const Rates::Linear line = fit(10, 5 + 10 * 0.25, 100, 5 + 100 * 0.25);
  EXPECT_DOUBLE_EQ(line.seconds, 5);
  EXPECT_DOUBLE_EQ(line.per_unit, 0.25);
}

TEST(Stopwatch, NeverFitsANegativePart) {
  // Noise: the larger piece came out faster, or a small one faster than in proportion.
  const Rates::Linear falling = fit(10, 8, 100, 4), steep = fit(10, 0.1, 100, 4);
  for (const Rates::Linear& line : {falling, steep}) {
    EXPECT_EQ(line.seconds, 0);
    EXPECT_DOUBLE_EQ(line.of(100), 4);
  }
}

TEST(Stopwatch, TimesThePieceAndNotTheWaitForIt) {
  using namespace std::chrono_literals;
  const auto device = make_cpu_device();
  const auto stream = device->stream("work");
  const Work work = [](Stream& on) { on.mark([] { std::this_thread::sleep_for(2ms); }); };
  const double seconds = time_alone(*device, *stream, work, 0.02);
  EXPECT_GE(seconds, 2e-3);
  EXPECT_LT(seconds, 8e-3);
}

TEST(Stopwatch, SustainedIsTheMeanOfWhatComesAfterTheSettling) {
  using namespace std::chrono_literals;
  const auto device = make_cpu_device();
  const auto stream = device->stream("work");
  const auto begin = std::chrono::steady_clock::now();
  int pieces = 0;
  // Fast at first; then two of three pieces take 2 ms and one 8 ms: the median would be 2 ms, the mean is 4.
  const Work work = [&](Stream& on) {
    on.mark([&] {
      const bool settling = std::chrono::steady_clock::now() - begin < 20ms;
      std::this_thread::sleep_for(settling ? 1ms : ++pieces % 3 == 0 ? 8ms : 2ms);
    });
  };
  const double seconds = time_sustained(*device, *stream, work, 0.025, 0.12);
  EXPECT_GE(seconds, 3.2e-3);
  EXPECT_LT(seconds, 12e-3);
}

TEST(Stopwatch, FindsTheRateOfEachDirectionOfALink) {
  constexpr double kH2d = 400e6, kD2h = 150e6;
  const auto device =
      make_cpu_device({.capacity = 4 * kMiB, .h2d_bytes_per_second = kH2d, .d2h_bytes_per_second = kD2h});
  std::byte* const on_device = device->arena(Tier::kDevice, 2 * kMiB);
  std::byte* const on_host = device->arena(Tier::kPinned, 2 * kMiB);
  const auto stream = device->stream("link");
  const Rates::Linear h2d = copy_time(*device, *stream, on_device, on_host, 2 * kMiB, 0.05);
  const Rates::Linear d2h = copy_time(*device, *stream, on_host, on_device, 2 * kMiB, 0.05);
  EXPECT_NEAR(1 / h2d.per_unit, kH2d, 0.2 * kH2d);
  EXPECT_NEAR(1 / d2h.per_unit, kD2h, 0.2 * kD2h);
  EXPECT_LT(h2d.seconds, 2e-3);
}

}  // namespace
}  // namespace protrain::profile
