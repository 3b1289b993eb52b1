#include "memory/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"

namespace protrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Tier kTier = Tier::kDevice;
constexpr Bytes kBytes = 64 * kAlignment;

// Lets a stream's work begin when a test says so.
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

std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Arena, CountsWhatIsHandedOutAndItsLargestEnd) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto device = make_cpu_device();
  Arena arena(*device, kTier, kBytes, {.check = true});
  std::vector<Range> slots(16);  // of 4 x kAlignment each; 0 bytes: free
  Bytes in_use = 0, high_water = 0;
  for (int round = 0; round < 500; ++round) {
    const std::size_t slot = random() % slots.size();
    Range& range = slots[slot];
    if (range.bytes > 0) {
      arena.release(range);
      in_use -= range.bytes;
      range.bytes = 0;
    } else {
      range = {kTier, static_cast<Bytes>(slot) * 4 * kAlignment, static_cast<Bytes>(1 + random() % (4 * kAlignment))};
      arena.acquire(range, "slot");
      in_use += range.bytes;
      high_water = std::max(high_water, range.offset + range.bytes);
    }
    ASSERT_EQ(arena.in_use(), in_use);
    ASSERT_EQ(arena.high_water(), high_water);
  }
}

TEST(Arena, RefusesARangeThatOverlapsAnotherInUseAndNamesBoth) {
  for (const Range other : {Range{kTier, 512, 512}, Range{kTier, 0, 513}, Range{kTier, 512, 1}, Range{kTier, 1024, 512},
                            Range{kTier, 0, kBytes}}) {
    const auto device = make_cpu_device();
    Arena checked(*device, kTier, kBytes, {.check = true});
    checked.acquire({kTier, 512, 1000}, "weights");
    EXPECT_THAT(message_of([&] { checked.acquire(other, "gradient"); }),
                AllOf(HasSubstr("gradient"), HasSubstr("weights"), HasSubstr("[512, 1512)")));
    EXPECT_EQ(checked.in_use(), 1000);  // the refused one is not counted
    checked.acquire({kTier, 0, 512}, "before");
    checked.acquire({kTier, 1536, 512}, "after");
    checked.release({kTier, 512, 1000});
    checked.acquire({kTier, 512, 1024}, "between");
  }
}

TEST(Arena, RefusesWhatIsNotItsOwnOrWasNotHandedOut) {
  const auto device = make_cpu_device();
  Arena arena(*device, kTier, kBytes, {.check = true});
  arena.acquire({kTier, 512, 512}, "a");
  EXPECT_THROW(arena.release({kTier, 512, 511}), InternalError);
  EXPECT_THROW(arena.release({kTier, 0, 512}), InternalError);
  arena.release({kTier, 512, 512});
  EXPECT_THROW(arena.release({kTier, 512, 512}), InternalError);
  EXPECT_THROW(arena.acquire({kTier, kBytes - 512, 513}, "long"), InternalError);
  EXPECT_THROW(arena.acquire({kTier, -512, 512}, "early"), InternalError);
  EXPECT_THROW(arena.acquire({Tier::kPinned, 0, 512}, "of another tier"), InternalError);
  EXPECT_THROW(arena.acquire({kTier, 256, 512}, "shifted"), InternalError);
  EXPECT_THROW(arena.at({kTier, kBytes, 1}), InternalError);
  EXPECT_EQ(arena.at({kTier, 512, 1}) - arena.at({kTier, 0, kBytes}), 512);
  EXPECT_EQ(arena.high_water(), 1024);
}

TEST(Arena, OfNoBytesAsksForNoMemory) {
  const auto device = make_cpu_device();
  const Arena arena(*device, Tier::kPinned, 0, {.check = true, .poison = true});
  EXPECT_EQ(arena.bytes(), 0);
  EXPECT_EQ(arena.high_water(), 0);
  EXPECT_NE(device->arena(Tier::kPinned, 512), nullptr);  // still to be had
}

#ifndef __SANITIZE_ADDRESS__  // there the look itself is an error: see below

bool is_poisoned(const std::byte* begin, Bytes bytes) {
  return std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{0xff}; });
}

TEST(Arena, PoisonsWhatIsFreeAndTheGapsUpToTheNextRange) {
  const auto device = make_cpu_device();
  Arena arena(*device, kTier, kBytes, {.check = true, .poison = true});
  std::byte* const begin = arena.at({kTier, 0, kBytes});
  EXPECT_TRUE(is_poisoned(begin, kBytes));
  float nan = 0;
  std::memcpy(&nan, begin, 4);
  EXPECT_TRUE(std::isnan(nan));

  const Range range{kTier, 512, 700};
  arena.acquire(range, "a");
  std::memset(begin + 512, 1, 1024);  // beyond its end, into the gap
  arena.acquire({kTier, 1536, 512}, "neighbour");
  std::memset(begin + 1536, 2, 512);
  arena.release(range);
  EXPECT_TRUE(is_poisoned(begin, 1536));
  EXPECT_EQ(begin[1536], std::byte{2});
}

TEST(Arena, PoisonsInTheOrderOfTheStreamsWork) {
  const auto device = make_cpu_device();
  Arena arena(*device, kTier, kBytes, {.check = true, .poison = true});
  const auto stream = device->stream("compute");
  const auto gate = std::make_shared<Gate>();
  const Range range{kTier, 0, 512};
  std::vector<std::byte> from(512, std::byte{3}), to(512);
  arena.acquire(range, "a", stream.get());
  stream->wait(Event(gate));
  stream->copy(arena.at(range), from.data(), 512);
  stream->copy(to.data(), arena.at(range), 512);
  arena.release(range, stream.get());
  EXPECT_EQ(arena.in_use(), 0);  // the books do not wait
  arena.acquire(range, "b", stream.get());
  gate->open();
  stream->synchronize();
  EXPECT_EQ(to, from);
  EXPECT_TRUE(is_poisoned(arena.at(range), 512));
}

#else

using ArenaDeathTest = ::testing::TestWithParam<int>;

// Reads one byte of an arena that it must not touch, or of one that it may.
void touch(int which) {
  const auto device = make_cpu_device();
  Arena arena(*device, kTier, kBytes, {.check = true, .poison = true});
  const Range range{kTier, 512, 700};
  arena.acquire(range, "a");
  volatile std::byte* const begin = arena.at(range);
  begin[699] = std::byte{1};
  switch (which) {
    case 0: begin[700] = std::byte{1}; break;   // one byte too far
    case 1: begin[1023] = std::byte{1}; break;  // the gap's last
    case 2: (void)begin[-1]; break;             // free since the start
    case 3:
      arena.release(range);
      (void)begin[0];
      break;
    case 4:  // a copy of a stream
      const auto stream = device->stream("h2d");
      std::vector<std::byte> from(701);
      stream->copy(arena.at(range), from.data(), 701);
      stream->synchronize();
      break;
  }
}

TEST_P(ArenaDeathTest, AnOverrunIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(touch(GetParam()), "use-after-poison");
}
INSTANTIATE_TEST_SUITE_P(Plants, ArenaDeathTest, ::testing::Range(0, 5));

TEST(Arena, WhatIsInUseMayBeTouchedAndSoMayTheMemoryOfAnArenaThatIsGone) {
  const auto device = make_cpu_device();
  std::byte* begin = nullptr;
  {
    Arena arena(*device, kTier, kBytes, {.check = true, .poison = true});
    const auto stream = device->stream("compute");
    begin = arena.at({kTier, 0, kBytes});
    arena.acquire({kTier, 0, 700}, "a", stream.get());
    stream->zero(begin, 700);
    arena.release({kTier, 0, 700}, stream.get());
    arena.acquire({kTier, 0, 1000}, "b", stream.get());
    stream->zero(begin, 1000);
    stream->synchronize();
  }
  std::memset(begin, 0, static_cast<std::size_t>(kBytes));
}

#endif

}  // namespace
}  // namespace protrain
