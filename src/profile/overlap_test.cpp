#include "profile/overlap.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace protrain::profile {
namespace {

constexpr Bytes kCopy = 256 * kKiB;
constexpr OverlapPace kPace = {.settle = 50e-3, .window = 500e-3};

// A device whose links take about ten milliseconds for a copy, and streams to copy on: on a busy machine a thread may
// wake a millisecond or two late.
struct Links {
  std::unique_ptr<Device> device =
      make_cpu_device({.capacity = 8 * kMiB, .h2d_bytes_per_second = 25e6, .d2h_bytes_per_second = 25e6});
  std::byte* on_device = device->arena(Tier::kDevice, 4 * kCopy);
  std::byte* on_host = device->arena(Tier::kPinned, 4 * kCopy);
  std::unique_ptr<Stream> a = device->stream("a"), b = device->stream("b");

  LaneLoad up(Lane lane, Stream& stream, Bytes at, bool own_thread = true) const {
    return {lane, &stream, [=, this](Stream& on) { on.copy(on_device + at, on_host + at, kCopy); }, own_thread,
            !own_thread};
  }
  LaneLoad down(Lane lane, Stream& stream, Bytes at) const {
    return {lane, &stream, [=, this](Stream& on) { on.copy(on_host + at, on_device + at, kCopy); }, true};
  }
};

double at(const std::array<std::array<double, kLanes>, kLanes>& slowdown, Lane a, Lane b) {
  return slowdown[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
}

TEST(Overlap, TwoLanesOnOneLinkTakeTwiceAsLong) {
  const Links links;
  for (const bool own_thread : {true, false}) {
    const auto slowdown =
        slowdowns(*links.device,
                  {links.up(Lane::kH2d, *links.a, 0), links.up(Lane::kCompute, *links.b, kCopy, own_thread)}, kPace);
    EXPECT_NEAR(at(slowdown, Lane::kH2d, Lane::kCompute), 2, 0.4);
    EXPECT_NEAR(at(slowdown, Lane::kCompute, Lane::kH2d), 2, 0.4);
  }
}

TEST(Overlap, LanesThatShareNothingDoNotSlowDown) {
  const Links links;
  const auto slowdown =
      slowdowns(*links.device, {links.up(Lane::kH2d, *links.a, 0), links.down(Lane::kD2h, *links.b, 2 * kCopy)}, kPace);
  for (const auto& row : slowdown) {
    for (const double value : row) {
      EXPECT_GE(value, 1);
      EXPECT_LT(value, 1.3);
    }
  }
}

TEST(Overlap, ALongPieceBesideShortOnesIsSeenWhole) {
  const Links links;
  const LaneLoad longer = {Lane::kD2h, links.b.get(),
                           [&](Stream& on) {
                             for (int i = 0; i < 80; ++i) on.copy(links.on_host, links.on_device, kCopy);
                           },
                           true};
  const auto slowdown = slowdowns(*links.device, {links.up(Lane::kH2d, *links.a, kCopy), longer}, kPace);
  EXPECT_LT(at(slowdown, Lane::kD2h, Lane::kH2d), 1.3);
  EXPECT_LT(at(slowdown, Lane::kH2d, Lane::kD2h), 1.3);
}

TEST(Overlap, AFailureOfEitherLaneReachesTheCaller) {
  const Links links;
  for (const bool own_thread : {true, false}) {
    int pieces = 0;
    LaneLoad fails = links.up(Lane::kCompute, *links.b, 0, own_thread);
    fails.work = [&](Stream&) {
      if (++pieces > 1) throw std::runtime_error("planned");  // not when it works alone
    };
    const OverlapPace short_pace = {.settle = 0, .window = 0};
    EXPECT_THROW(slowdowns(*links.device, {fails, links.up(Lane::kH2d, *links.a, kCopy)}, short_pace),
                 std::runtime_error);
  }
}

}  // namespace
}  // namespace protrain::profile
