#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"

namespace protrain {
namespace {

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
  std::latch all(4);
  pool.parallel_for(4, 1, [&](std::int64_t, std::int64_t) {
    {
      const std::lock_guard lock(mutex);
      ids.push_back(std::this_thread::get_id());
    }
    all.arrive_and_wait();
  });
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()) - ids.begin(), 4);
}

// A thread that is held up costs its slice and no more: the others do what is left.
TEST(ThreadPool, OthersDoTheWorkOfOneThatIsHeldUp) {
  ThreadPool pool(2);
  std::atomic<int> ranges = 0;
  std::atomic<bool> held = false;
  pool.parallel_for(32, 1, [&](std::int64_t, std::int64_t) {
    if (!held.exchange(true)) {
      while (ranges < 31) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ++ranges;
  });
  EXPECT_EQ(ranges, 32);
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

TEST(ThreadPool, PlacedByNodeItDoesTheSameWork) {
  ThreadPool pool(5, Placement::kByNode);
  std::vector<int> visits(1000);
  pool.parallel_for(1000, 10, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  EXPECT_EQ(visits, std::vector<int>(1000, 1));
}

}  // namespace
}  // namespace protrain
