// Ranges that tasks hand out and take back, told to arenas that poison: whatever is late, fails or is abandoned.
#include "runtime/executor_lives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "device/faulty_device.h"
#include "runtime/executor_test_support.h"

namespace protrain {
namespace {

using test::Runner;
using test::table_of;
using test::task_on;
using ::testing::HasSubstr;

constexpr Bytes kBytes = 64 * kKiB;

struct Machine {
  explicit Machine(const DeviceFaults& faults = {}) : device(make_faulty_device(make_cpu_device(), faults)) {}

  Arenas arenas() { return {&on_device, &pinned, nullptr, nullptr}; }
  std::uint64_t* at(const Range& range) {
    return reinterpret_cast<std::uint64_t*>((range.tier == Tier::kDevice ? on_device : pinned).at(range));
  }
  // Nothing is handed out, and every byte says so.
  void expect_empty() {
    for (Arena* arena : {&on_device, &pinned}) {
      EXPECT_EQ(arena->in_use(), 0);
#ifndef __SANITIZE_ADDRESS__  // there nobody may look
      const std::byte* const begin = arena->at({arena->tier(), 0, kBytes});
      EXPECT_TRUE(std::all_of(begin, begin + kBytes, [](std::byte b) { return b == std::byte{0xff}; }));
#endif
    }
  }

  std::unique_ptr<Device> device;
  Arena on_device{*device, Tier::kDevice, kBytes, {.check = true, .poison = true}};
  Arena pinned{*device, Tier::kPinned, kBytes, {.check = true, .poison = true}};
};

Access reads(const Range& range) { return {range, false, false}; }
Access writes(const Range& range) { return {range, true, false}; }
Access begins(const Range& range) { return {range, true, true}; }

// Random lives, packed tightly: bytes go from one range to the next as soon as they may. Tasks of all lanes begin
// ranges, read and write those that live, and end some, now and then later than their last use.
struct RandomGraph {
  explicit RandomGraph(std::mt19937& random) {
    const auto below = [&](std::size_t n) { return random() % n; };
    std::vector<Range> live;
    const std::size_t count = 30 + below(40);
    for (std::size_t id = 0; id < count; ++id) {
      Task task = task_on(static_cast<Lane>(below(kLanes)), fmt::format("task {}", id));
      for (std::size_t reading = below(3); reading > 0 && !live.empty(); --reading) {
        task.access.push_back(reads(live[below(live.size())]));
      }
      const bool more = live.size() < 2 + below(6);
      const Range target =
          more ? place(live, below(2) == 0 ? Tier::kDevice : Tier::kPinned, static_cast<Bytes>(8 * (1 + below(150))))
               : live[below(live.size())];
      task.access.push_back(more ? begins(target) : writes(target));
      if (more) {
        task.acquires.push_back(target);
        live.push_back(target);
      }
      const bool last = id + 1 == count;
      for (std::size_t i = live.size(); i-- > 0;) {
        if (!last && below(6) > 0) continue;
        task.releases.push_back(live[i]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      }
      schedule.tasks.push_back(std::move(task));
    }
    test::add_edges(schedule);
  }

  // The lowest free place.
  Range place(const std::vector<Range>& live, Tier tier, Bytes bytes) {
    Range range{tier, 0, bytes};
    for (bool free = false; !free;) {
      free = true;
      for (const Range& other : live) {
        if (other.tier != tier || other.offset >= range.offset + bytes || range.offset >= other.offset + other.bytes)
          continue;
        range.offset = round_up(other.offset + other.bytes, kAlignment);
        free = false;
      }
    }
    high_water[static_cast<std::size_t>(tier)] =
        std::max(high_water[static_cast<std::size_t>(tier)], range.offset + range.bytes);
    return range;
  }

  Schedule schedule;
  std::array<Bytes, 2> high_water{};
};

// Every word of what a task reads goes into every word that it writes; all results are kept.
struct Toy {
  Toy(const Schedule& schedule_in, Machine& machine_in) : schedule(schedule_in), machine(machine_in) {
    results.resize(schedule.tasks.size());
  }
  void run(const Task& task, Stream& stream) {
    const auto id = static_cast<std::size_t>(&task - schedule.tasks.data());
    auto& words = results[id];
    const Range& target = task.access.back().range;
    stream.call([&] {
      std::uint64_t value = id + 1;
      for (const Access& access : task.access) {
        if (access.fresh) continue;
        const std::uint64_t* const from = machine.at(access.range);
        for (Bytes i = 0; i < access.range.bytes / 8; ++i) value = (value ^ from[i]) * 0x9e3779b97f4a7c15u;
      }
      words.assign(static_cast<std::size_t>(target.bytes / 8), value);
    });
    // Only issued: both halves of every edge count.
    stream.copy(reinterpret_cast<std::byte*>(machine.at(target)), reinterpret_cast<const std::byte*>(words.data()),
                target.bytes);
  }

  const Schedule& schedule;
  Machine& machine;
  std::vector<std::vector<std::uint64_t>> results;  // by task
};

// The same with bytes that nobody shares, one task after the other.
std::vector<std::uint64_t> expected_values(const Schedule& schedule) {
  std::vector<std::uint64_t> result;
  std::vector<std::pair<Range, std::uint64_t>> values;  // of what lives
  for (const Task& task : schedule.tasks) {
    std::uint64_t value = result.size() + 1;
    for (const Access& access : task.access) {
      if (access.fresh) continue;
      const auto found =
          std::find_if(values.begin(), values.end(), [&](const auto& own) { return own.first == access.range; });
      for (Bytes i = 0; i < access.range.bytes / 8; ++i) value = (value ^ found->second) * 0x9e3779b97f4a7c15u;
    }
    result.push_back(value);
    const Access& target = task.access.back();
    std::erase_if(values, [&](const auto& own) { return own.first == target.range; });
    values.emplace_back(target.range, value);
    for (const Range& range : task.releases) std::erase_if(values, [&](const auto& own) { return own.first == range; });
  }
  return result;
}

TEST(Lives, NeverOverlapAndKeepTheirBytesWhateverIsLate) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    const RandomGraph graph(random);
    ASSERT_EQ(race(graph.schedule), "");
    Machine machine({.seed = random(), .longest_delay_seconds = round % 2 == 0 ? 1e-4 : 0});
    Toy toy(graph.schedule, machine);
    Runner runner([&](const Task& task, Stream& stream) { toy.run(task, stream); });
    Executor executor(*machine.device, table_of(runner), machine.arenas());
    const std::vector<std::uint64_t> expected = expected_values(graph.schedule);
    for (int run = 0; run < 2; ++run) {
      executor.run(graph.schedule);
      for (std::size_t id = 0; id < expected.size(); ++id) {
        ASSERT_EQ(toy.results[id].at(0), expected[id]) << "round " << round << " task " << id;
      }
      machine.expect_empty();
      EXPECT_EQ(machine.on_device.high_water(), graph.high_water[0]);
      EXPECT_EQ(machine.pinned.high_water(), graph.high_water[1]);
    }
  }
}

TEST(Lives, EndWithARunThatFailsOrIsAbandonedWherever) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    const RandomGraph graph(random);
    const auto count = graph.schedule.tasks.size();
    Machine machine({.seed = random(), .longest_delay_seconds = round % 2 == 0 ? 1e-4 : 0});
    Toy toy(graph.schedule, machine);
    Runner runner([&](const Task& task, Stream& stream) { toy.run(task, stream); });
    Executor executor(*machine.device, table_of(runner), machine.arenas());

    const auto failing = static_cast<Id>(random() % count);
    RunOptions options;
    options.before_task = [&](Id id, const Task&) {
      if (id == failing) throw std::runtime_error("injected");
    };
    try {
      executor.run(graph.schedule, options);
      FAIL() << "task " << failing << " did not fail";
    } catch (const InternalError& error) {
      EXPECT_EQ(error.what(), fmt::format("task {}: injected", failing));
    }
    EXPECT_FALSE(executor.completed().at(failing));
    machine.expect_empty();

    RunOptions abandoning;
    abandoning.abandon = [&] { return random() % 4 == 0; };
    executor.run(graph.schedule, abandoning);
    machine.expect_empty();

    executor.run(graph.schedule);
    EXPECT_EQ(toy.results.back().at(0), expected_values(graph.schedule).back());
    EXPECT_EQ(executor.completed(), std::vector<bool>(count, true));
    machine.expect_empty();
  }
}

TEST(Lives, ThatDoNotEndOrNeverBeganAreFound) {
  Machine machine;
  Runner runner([](const Task&, Stream&) {});
  Executor executor(*machine.device, table_of(runner), machine.arenas());
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kCompute, "opens")};
  schedule.tasks[0].acquires = {{Tier::kDevice, 512, 8}};
  const auto message = [&] {
    try {
      executor.run(schedule);
    } catch (const InternalError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(), HasSubstr("what opens acquires no task releases"));
  machine.expect_empty();
  schedule.tasks.push_back(task_on(Lane::kH2d, "closes", {0}));
  schedule.tasks[1].releases = {{Tier::kDevice, 512, 9}};
  EXPECT_THAT(message(), HasSubstr("closes releases 9 bytes at 512"));
  machine.expect_empty();
  schedule.tasks[1].releases = {{Tier::kDevice, 512, 8}};
  executor.run(schedule);
  machine.expect_empty();
}

TEST(Lives, ThatTheGraphDoesNotOrderAreFoundByTheArena) {
  const Range range{Tier::kDevice, 0, 512}, next{Tier::kDevice, 0, 1024};
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kCompute, "use"), task_on(Lane::kCompute, "last use"),
                    task_on(Lane::kH2d, "next", {0})};  // and not after 1
  schedule.tasks[0].acquires = {range};
  schedule.tasks[1].releases = {range};
  schedule.tasks[2].acquires = {next};
  schedule.tasks[2].releases = {next};
  Machine machine;
  std::atomic<bool> taken = false;
  Runner runner([](const Task&, Stream&) {});
  Executor executor(*machine.device, table_of(runner), machine.arenas());
  RunOptions options;
  options.before_task = [&](Id id, const Task&) {
    if (id == 2) taken = true;
    if (id == 1) {
      while (!taken) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  try {
    executor.run(schedule, options);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("of next overlaps [0, 512) of use"));
  }
  machine.expect_empty();
}

TEST(Lives, OfATierWithoutAnArenaAreLeftOut) {
  Machine machine;
  Runner runner([](const Task&, Stream&) {});
  Executor executor(*machine.device, table_of(runner), machine.arenas());
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kCompute, "a")};
  schedule.tasks[0].acquires = {{Tier::kPageable, 0, 512}};
  schedule.tasks[0].releases = {{Tier::kPageable, 0, 512}};
  executor.run(schedule);
}

#ifdef __SANITIZE_ADDRESS__
TEST(LivesDeathTest, AReadBeyondTheLifeIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto late_read = [] {
    const Range range{Tier::kDevice, 0, 512};
    Schedule schedule;
    schedule.tasks = {task_on(Lane::kCompute, "a"), task_on(Lane::kD2h, "late", {0})};
    schedule.tasks[0].access = {begins(range)};
    schedule.tasks[0].acquires = {range};
    schedule.tasks[0].releases = {range};
    Machine machine;
    std::vector<std::byte> to(512);
    Runner runner([&](const Task& task, Stream& stream) {
      if (task.name == "late") stream.copy(to.data(), reinterpret_cast<std::byte*>(machine.at(range)), 512);
    });
    Executor(*machine.device, table_of(runner), machine.arenas()).run(schedule);
  };
  EXPECT_DEATH(late_read(), "use-after-poison");
}
#endif

}  // namespace
}  // namespace protrain
