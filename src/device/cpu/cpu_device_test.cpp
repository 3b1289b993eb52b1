#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/cgroup.h"
#include "base/error.h"
#include "base/seconds_since.h"
#include "device/device.h"
#include "device/host_mapping.h"

namespace protrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLaneCount = 4;
constexpr int kRounds = 200;
constexpr std::size_t kTurns = std::size_t{kLaneCount} * kRounds;

// An event that a test sets by hand, as a host lane's would be.
class Gate : public EventState {
 public:
  bool ready() const override { return open_; }
  void wait() const override { open_.wait(false); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_ = false;
};

TEST(CpuDevice, ArenasAreAlignedZeroedAndGivenOnce) {
  const auto device = make_cpu_device({.capacity = 8 * kMiB});
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
    std::byte* const arena = device->arena(tier, 5 * kMiB + 512);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena) % kHugePage, 0u);
    EXPECT_TRUE(std::all_of(arena, arena + 5 * kMiB + 512, [](std::byte b) { return b == std::byte{0}; }));
    std::memset(arena, 1, 5 * kMiB + 512);
    EXPECT_THROW(device->arena(tier, kMiB), InternalError);
  }
  EXPECT_THROW(device->arena(Tier::kDisk, kMiB), InternalError);
}

TEST(CpuDevice, AnArenaBeyondItsCapacityDoesNotFit) {
  const auto device = make_cpu_device({.capacity = 8 * kMiB});
  EXPECT_EQ(device->capacity(), 8 * kMiB);
  try {
    device->arena(Tier::kDevice, 8 * kMiB + 1);
    FAIL() << "fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
  }
  // Host tiers have budgets of their own.
  EXPECT_NE(device->arena(Tier::kPinned, 9 * kMiB), nullptr);
  EXPECT_NE(device->arena(Tier::kDevice, 8 * kMiB), nullptr);
  EXPECT_EQ(device->capacity(), 0);
  EXPECT_EQ(device->memory().in_use, 8 * kMiB);
  EXPECT_EQ(device->memory().total, 8 * kMiB);
}

TEST(CpuDevice, ItsDefaultCapacityIsTheHosts) {
  EXPECT_GT(make_cpu_device()->capacity(), 0);
  EXPECT_FALSE(make_cpu_device()->name().empty());
}

TEST(CpuStream, RunsItsWorkInOrder) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto stream = device->stream("compute");
  std::vector<std::byte> a(1000, std::byte{1});
  std::vector<std::byte> b(1000, std::byte{2});
  stream->copy(b.data(), a.data(), 1000);
  stream->zero(a.data(), 500);
  stream->copy(a.data() + 500, b.data(), 100);
  stream->zero(b.data(), 1000);
  stream->copy(b.data(), a.data(), 1000);
  stream->synchronize();
  EXPECT_EQ(std::count(b.begin(), b.end(), std::byte{0}), 500);
  EXPECT_EQ(std::count(b.begin(), b.end(), std::byte{1}), 500);
}

TEST(CpuStream, CopiesReadMemoryWhenTheyRunNotWhenTheyAreIssued) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto stream = device->stream("h2d");
  const auto gate = std::make_shared<Gate>();
  std::byte from{1};
  std::byte to{0};
  stream->wait(Event(gate));
  stream->copy(&to, &from, 1);
  const Event done = stream->record();
  EXPECT_FALSE(done.ready());
  from = std::byte{2};
  gate->open();
  done.wait();
  EXPECT_TRUE(done.ready());
  EXPECT_EQ(to, std::byte{2});
}

TEST(CpuStream, AWaitHoldsBackThatStreamAndNotTheHost) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto first = device->stream("h2d");
  const auto second = device->stream("compute");
  const auto gate = std::make_shared<Gate>();
  std::vector<std::byte> a(64, std::byte{1});
  std::vector<std::byte> b(64);
  std::vector<std::byte> c(64);
  first->wait(Event(gate));
  first->copy(b.data(), a.data(), 64);
  const Event copied = first->record();
  second->wait(copied);
  second->copy(c.data(), b.data(), 64);
  const Event all = second->record();
  EXPECT_FALSE(copied.ready());
  EXPECT_FALSE(all.ready());
  gate->open();
  all.wait();
  EXPECT_EQ(c, a);
}

TEST(CpuStream, ACallRunsOnTheCallersThreadAfterEarlierWork) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto stream = device->stream("compute");
  std::vector<std::byte> a(100000, std::byte{1});
  std::vector<std::byte> b(100000);
  stream->copy(b.data(), a.data(), 100000);
  std::thread::id thread;
  bool complete = false;
  stream->call([&] {
    thread = std::this_thread::get_id();
    complete = b == a;
  });
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_TRUE(complete);
  EXPECT_THROW(stream->call([] { fail(ExitCode::kNonFinite, "from the call"); }), Error);
  stream->synchronize();  // an error of the call is the caller's, not the stream's
}

TEST(CpuStream, AnErrorSkipsLaterWorkAndReachesEveryWaiter) {
  class Broken : public EventState {
   public:
    bool ready() const override { return false; }
    void wait() const override { fail(ExitCode::kInternal, "broken"); }
  };
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto first = device->stream("h2d");
  const auto second = device->stream("compute");
  std::byte from{1};
  std::byte to{0};
  const Event before = first->record();
  first->wait(Event(std::make_shared<Broken>()));
  first->copy(&to, &from, 1);
  const Event after = first->record();
  second->wait(after);
  const Event behind = second->record();
  EXPECT_NO_THROW(before.wait());
  EXPECT_THROW(after.wait(), Error);
  EXPECT_TRUE(after.ready());
  EXPECT_THROW(behind.wait(), Error);
  EXPECT_THROW(first->synchronize(), Error);
  EXPECT_THROW(second->call([] {}), Error);
  EXPECT_EQ(to, std::byte{0});
}

TEST(CpuStream, EventsAreTimed) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto stream = device->stream("compute");
  const Event first = stream->record();
  stream->call([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  const Event second = stream->record();
  second.wait();
  EXPECT_GE(device->seconds_between(first, second), 0.020);
  EXPECT_LE(device->seconds_between(first, second), 2.0);
  EXPECT_LE(device->seconds_between(second, first), -0.020);
}

TEST(CpuStream, ADefaultEventHasPassed) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto stream = device->stream("compute");
  EXPECT_TRUE(Event().ready());
  Event().wait();
  stream->wait(Event());
  stream->synchronize();
}

TEST(CpuStream, EndingAStreamFinishesItsWork) {
  const auto device = make_cpu_device({.capacity = kMiB});
  std::vector<std::byte> a(100000, std::byte{1});
  std::vector<std::byte> b(100000);
  Event done;
  {
    const auto stream = device->stream("d2h");
    stream->copy(b.data(), a.data(), 100000);
    done = stream->record();
  }
  EXPECT_TRUE(done.ready());
  EXPECT_EQ(a, b);
}

TEST(CpuLink, IsThrottledEachWayAndOnlyBetweenHostAndDevice) {
  const auto device =
      make_cpu_device({.capacity = 8 * kMiB, .h2d_bytes_per_second = 40e6, .d2h_bytes_per_second = 20e6});
  std::byte* const on_device = device->arena(Tier::kDevice, 4 * kMiB);
  std::byte* const on_host = device->arena(Tier::kPinned, 4 * kMiB);
  const auto timed = [&](std::byte* to, const std::byte* from) {
    const auto stream = device->stream("lane");
    const auto start = Clock::now();
    stream->copy(to, from, 1000000);
    stream->synchronize();
    return seconds_since(start);
  };
  EXPECT_GE(timed(on_device, on_host), 0.025);
  EXPECT_GE(timed(on_host, on_device), 0.050);
  const auto quickest = [&](std::byte* to, const std::byte* from) {  // others may hold the cores for a while
    double least = timed(to, from);
    for (int i = 0; i < 20 && least >= 0.020; ++i) least = std::min(least, timed(to, from));
    return least;
  };
  EXPECT_LT(quickest(on_device + 2 * kMiB, on_device), 0.020);
  EXPECT_LT(quickest(on_host + 2 * kMiB, on_host), 0.020);
}

TEST(CpuLink, StreamsOfOneDirectionShareItsRate) {
  const auto device = make_cpu_device({.capacity = 8 * kMiB, .h2d_bytes_per_second = 40e6});
  std::byte* const on_device = device->arena(Tier::kDevice, 4 * kMiB);
  std::byte* const on_host = device->arena(Tier::kPinned, 4 * kMiB);
  const auto first = device->stream("a");
  const auto second = device->stream("b");
  const auto start = Clock::now();
  first->copy(on_device, on_host, 1000000);
  second->copy(on_device + 2 * kMiB, on_host + 2 * kMiB, 1000000);
  first->synchronize();
  second->synchronize();
  EXPECT_GE(seconds_since(start), 0.050);
}

// Lanes in rings, each with its own issuing thread: a token is passed on from slot to slot. Any missing order is a data
// race (TSan) or a wrong value.
TEST(CpuDevice, ManyLanesWithEventsBetweenThemKeepTheirOrder) {
  const auto device = make_cpu_device({.capacity = kMiB});
  std::byte* const arena = device->arena(Tier::kDevice, kMiB);
  std::vector<std::unique_ptr<Stream>> lanes;
  lanes.reserve(kLaneCount);
  for (int lane = 0; lane < kLaneCount; ++lane) lanes.push_back(device->stream("lane" + std::to_string(lane)));

  std::vector<Event> events(kTurns);
  std::vector<std::atomic<bool>> recorded(kTurns);
  std::vector<std::thread> threads;
  threads.reserve(kLaneCount);
  for (int lane = 0; lane < kLaneCount; ++lane) {
    threads.emplace_back([&, lane] {
      for (int round = 0; round < kRounds; ++round) {
        const int mine = round * kLaneCount + lane;
        if (mine > 0) {
          recorded[static_cast<std::size_t>(mine - 1)].wait(false);
          lanes[static_cast<std::size_t>(lane)]->wait(events[static_cast<std::size_t>(mine - 1)]);
        }
        std::byte* const from = arena + lane * kAlignment;
        std::byte* const to = arena + (lane + 1) % kLaneCount * kAlignment;
        if (lane == 0) {
          lanes[0]->call([&] { *from = static_cast<std::byte>(round + 1); });
        }
        lanes[static_cast<std::size_t>(lane)]->copy(to, from, kAlignment);
        events[static_cast<std::size_t>(mine)] = lanes[static_cast<std::size_t>(lane)]->record();
        recorded[static_cast<std::size_t>(mine)] = true;
        recorded[static_cast<std::size_t>(mine)].notify_all();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& lane : lanes) lane->synchronize();
  for (int slot = 0; slot < kLaneCount; ++slot) {
    EXPECT_EQ(arena[slot * kAlignment], static_cast<std::byte>(kRounds)) << "slot " << slot;
  }
}

TEST(HostStream, DoesItsWorkAtOnceOnTheCallersThread) {
  const auto stream = make_host_stream();
  std::vector<int> a = {1, 2, 3}, b(3);
  stream->copy(reinterpret_cast<std::byte*>(b.data()), reinterpret_cast<const std::byte*>(a.data()), 12);
  EXPECT_EQ(b, a);
  stream->zero(reinterpret_cast<std::byte*>(b.data()), 8);
  EXPECT_EQ(b, (std::vector<int>{0, 0, 3}));
  std::thread::id thread;
  stream->call([&] { thread = std::this_thread::get_id(); });
  EXPECT_EQ(thread, std::this_thread::get_id());
  bool marked = false;
  stream->mark([&] { marked = true; });
  EXPECT_TRUE(marked);
  EXPECT_TRUE(stream->record().ready());
  EXPECT_THROW(stream->call([] { fail(ExitCode::kFiles, "disk full"); }), Error);
  stream->synchronize();
}

TEST(HostStream, WaitsOnItsThreadForTheDeviceAndTheDeviceAcceptsItsEvents) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto lane = device->stream("d2h");
  const auto host = device->host_stream("cpu_update");
  const auto gate = std::make_shared<Gate>();
  int value = 1, copy = 0;
  lane->wait(Event(gate));
  lane->copy(reinterpret_cast<std::byte*>(&copy), reinterpret_cast<const std::byte*>(&value), 4);
  const Event copied = lane->record();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    gate->open();
  });
  host->wait(copied);
  EXPECT_EQ(copy, 1);
  value = 2;
  const Event updated = host->record();
  lane->wait(updated);
  lane->copy(reinterpret_cast<std::byte*>(&copy), reinterpret_cast<const std::byte*>(&value), 4);
  lane->synchronize();
  opener.join();
  EXPECT_EQ(copy, 2);
}

TEST(HostStream, EventsStandOnTheDevicesClock) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto lane = device->stream("compute");
  const auto host = make_host_stream();
  const Event first = lane->record();
  first.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const Event second = host->record();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const Event third = lane->record();
  third.wait();
  EXPECT_GE(device->seconds_between(first, second), 0.005);
  EXPECT_GE(device->seconds_between(second, third), 0.005);
  EXPECT_NEAR(device->seconds_between(first, second) + device->seconds_between(second, third),
              device->seconds_between(first, third), 1e-9);
}

TEST(CpuStream, MarksComeInOrderEvenAfterAnError) {
  class Broken : public EventState {
   public:
    bool ready() const override { return false; }
    void wait() const override { fail(ExitCode::kInternal, "broken"); }
  };
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto stream = device->stream("h2d");
  const auto gate = std::make_shared<Gate>(), late = std::make_shared<Gate>();
  std::byte from{1}, to{0}, seen{0};
  std::atomic<int> marks = 0;
  stream->wait(Event(gate));
  stream->copy(&to, &from, 1);
  stream->mark([&] {
    seen = to;
    ++marks;
  });
  EXPECT_EQ(marks, 0);
  stream->wait(Event(std::make_shared<Broken>()));
  stream->wait(Event(late));  // others still work on what the mark is about
  stream->mark([&] { ++marks; });
  gate->open();
  while (marks == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(marks, 1);
  late->open();
  EXPECT_THROW(stream->synchronize(), Error);
  EXPECT_EQ(marks, 2);
  EXPECT_EQ(seen, std::byte{1});
}

TEST(CpuDevice, OneEventMayBeAwaitedByManyThreads) {
  const auto device = make_cpu_device({.capacity = kMiB});
  const auto stream = device->stream("compute");
  const auto gate = std::make_shared<Gate>();
  int value = 0;
  stream->wait(Event(gate));
  std::byte one{1};
  stream->copy(reinterpret_cast<std::byte*>(&value), &one, 1);
  const Event done = stream->record();
  std::atomic<int> seen = 0;
  std::vector<std::thread> threads;
  threads.reserve(kLaneCount);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      done.wait();
      seen += value;
    });
  }
  gate->open();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, 4);
}

Bytes resident(const HostMapping& mapping) {
  std::vector<unsigned char> pages(static_cast<std::size_t>(mapping.bytes() / 4096));
  EXPECT_EQ(::mincore(mapping.data(), static_cast<std::size_t>(mapping.bytes()), pages.data()), 0);
  return 4096 * std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

TEST(HostMapping, TouchingMakesEveryPageResidentHoweverManyNodesAndCores) {
  const std::vector<std::vector<Node>> machines = {
      {{0, {0}}}, {{0, {0, 1, 2}}}, {{0, {0}}, {1, {1}}}, {{0, {0, 1}}, {3, {2, 3, 4}}, {5, {5}}}};
  for (const std::vector<Node>& nodes : machines) {
    for (const Bytes pages : {1, 2, 3, 5, 8}) {
      HostMapping mapping(pages * kHugePage);
      EXPECT_EQ(resident(mapping), 0);
      mapping.touch(nodes);
      EXPECT_EQ(resident(mapping), mapping.bytes()) << nodes.size() << " nodes";
    }
  }
}

TEST(HostMapping, TouchingKeepsContentAndMovingKeepsTheAddress) {
  HostMapping mapping(3 * kMiB);
  EXPECT_EQ(mapping.bytes(), 4 * kMiB);
  mapping.data()[0] = std::byte{7};
  mapping.touch();
  std::byte* const address = mapping.data();
  HostMapping other = std::move(mapping);
  EXPECT_EQ(other.data(), address);
  EXPECT_EQ(other.data()[0], std::byte{7});
}

TEST(HostMapping, MoreThanThisProcessMayHaveDoesNotFit) {
  for (const Bytes bytes : {host_memory_limit() + 1, Bytes{1} << 56}) {
    try {
      HostMapping mapping(bytes);
      FAIL() << "fitted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    }
  }
}

}  // namespace
}  // namespace protrain
