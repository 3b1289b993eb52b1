#include "profile/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace protrain::profile {
namespace {

constexpr Bytes kCopy = 256 * kKiB;
constexpr OverlapPace kPace = {.settle = 5e-3, .window = 50e-3};

// A device whose links take about a millisecond for a copy, and streams to copy on.
struct Links {
  std::unique_ptr<Device> device =
      make_cpu_device({.capacity = 8 * kMiB, .h2d_bytes_per_second = 250e6, .d2h_bytes_per_second = 250e6});
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

// Of two lanes beside each other. What else the machine works at may lie beside one measurement alone: it is asked
// again until both are as they should be.
std::pair<double, double> slowdown_of(const Links& links, const LaneLoad& a, const LaneLoad& b, double least,
                                      double most) {
  std::pair<double, double> seen;
  for (int asked = 0; asked < 20; ++asked) {
    const auto slowdown = slowdowns(*links.device, {a, b}, kPace);
    seen = {at(slowdown, a.lane, b.lane), at(slowdown, b.lane, a.lane)};
    if (std::min(seen.first, seen.second) >= least && std::max(seen.first, seen.second) <= most) break;
  }
  return seen;
}

TEST(Overlap, TwoLanesOnOneLinkTakeTwiceAsLong) {
  const Links links;
  for (const bool own_thread : {true, false}) {
    const auto [first, second] = slowdown_of(links, links.up(Lane::kH2d, *links.a, 0),
                                             links.up(Lane::kCompute, *links.b, kCopy, own_thread), 1.6, 2.4);
    EXPECT_NEAR(first, 2, 0.4);
    EXPECT_NEAR(second, 2, 0.4);
  }
}

TEST(Overlap, LanesThatShareNothingDoNotSlowDown) {
  const Links links;
  const auto [first, second] =
      slowdown_of(links, links.up(Lane::kH2d, *links.a, 0), links.down(Lane::kD2h, *links.b, 2 * kCopy), 1, 1.3);
  for (const double value : {first, second}) {
    EXPECT_GE(value, 1);
    EXPECT_LE(value, 1.3);
  }
}

TEST(Overlap, ALongPieceBesideShortOnesIsSeenWhole) {
  const Links links;
  const LaneLoad longer = {Lane::kD2h, links.b.get(),
                           [&](Stream& on) {
                             for (int i = 0; i < 80; ++i) on.copy(links.on_host, links.on_device, kCopy);
                           },
                           true};
  const auto [first, second] = slowdown_of(links, longer, links.up(Lane::kH2d, *links.a, kCopy), 1, 1.3);
  EXPECT_LE(first, 1.3);
  EXPECT_LE(second, 1.3);
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
