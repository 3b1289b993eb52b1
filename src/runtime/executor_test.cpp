#include "runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "device/faulty_device.h"
#include "runtime/executor_test_support.h"

namespace protrain {
namespace {

using ::testing::HasSubstr;

using test::Runner;
using test::table_of;
using test::task_on;

constexpr Bytes kCells = 6;

// Random tasks on all lanes: each reads some cells and writes one.
Schedule random_schedule(std::mt19937& random) {
  const auto below = [&](std::size_t n) { return random() % n; };
  Schedule schedule;
  const std::size_t count = 20 + below(40);
  for (std::size_t id = 0; id < count; ++id) {
    Task task = task_on(static_cast<Lane>(below(kLanes)), fmt::format("task {}", id));
    for (std::size_t reads = below(3); reads > 0; --reads) {
      task.access.push_back({{Tier::kDevice, static_cast<Bytes>(below(kCells)), 1}, false});
    }
    task.access.push_back({{Tier::kDevice, static_cast<Bytes>(below(kCells)), 1}, true});
    schedule.tasks.push_back(std::move(task));
  }
  test::add_edges(schedule);
  return schedule;
}

// What a task writes: a hash of its id and of the cells it reads.
std::uint64_t value_of(Id id, const Task& task, const std::vector<std::uint64_t>& cells) {
  std::uint64_t value = static_cast<std::uint64_t>(id) + 1;
  for (const Access& access : task.access) {
    if (!access.writes) value = (value ^ cells[access.range.offset]) * 0x9e3779b97f4a7c15u;
  }
  return value;
}

TEST(Executor, OrdersRandomGraphsByTheirEdgesWhateverIsLate) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    DeviceFaults faults;
    faults.seed = random();
    faults.longest_delay_seconds = round % 2 == 0 ? 2e-4 : 0;
    const auto device = make_faulty_device(make_cpu_device(), faults);
    const Schedule schedule = random_schedule(random);
    ASSERT_EQ(race(schedule), "");

    std::vector<std::uint64_t> expected(kCells), cells(kCells), results(schedule.tasks.size());
    // Reads when the work is done, writes by a copy that is only issued: both halves of every edge count.
    Runner runner([&](const Task& task, Stream& stream) {
      const auto id = static_cast<Id>(&task - schedule.tasks.data());
      stream.call([&] { results[id] = value_of(id, task, cells); });
      stream.copy(reinterpret_cast<std::byte*>(&cells[task.access.back().range.offset]),
                  reinterpret_cast<const std::byte*>(&results[id]), sizeof(std::uint64_t));
    });
    Executor executor(*device, table_of(runner));
    for (int run = 0; run < 3; ++run) {
      for (std::size_t id = 0; id < schedule.tasks.size(); ++id) {
        const Task& task = schedule.tasks[id];
        expected[task.access.back().range.offset] = value_of(static_cast<Id>(id), task, expected);
      }
      executor.run(schedule);
      ASSERT_EQ(cells, expected) << "round " << round << " run " << run;
    }
  }
}

TEST(Executor, RunsComputeOnTheCallingThreadAndEveryOtherLaneOnOneOfItsOwn) {
  const auto device = make_cpu_device();
  std::mutex mutex;
  std::array<std::set<std::thread::id>, kLanes> threads;
  Runner runner([&](const Task& task, Stream&) {
    const std::lock_guard lock(mutex);
    threads[static_cast<int>(task.lane)].insert(std::this_thread::get_id());
  });
  Schedule schedule;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 3; ++i) schedule.tasks.push_back(task_on(static_cast<Lane>(lane), "task"));
  }
  Executor executor(*device, table_of(runner));
  executor.run(schedule);
  executor.run(schedule);
  std::set<std::thread::id> all;
  for (const auto& own : threads) {
    ASSERT_EQ(own.size(), 1u);
    all.insert(*own.begin());
  }
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kLanes));
  EXPECT_EQ(*threads[static_cast<int>(Lane::kCompute)].begin(), std::this_thread::get_id());
}

// Six tasks that wait for each other around the lanes; `fails` throws while others wait for it.
Schedule chain() {
  Schedule schedule;
  for (const Lane lane : {Lane::kH2d, Lane::kCompute, Lane::kD2h, Lane::kCpuUpdate, Lane::kGpuUpdate, Lane::kCompute}) {
    const auto id = static_cast<Id>(schedule.tasks.size());
    schedule.tasks.push_back(
        task_on(lane, fmt::format("link {}", id), id == 0 ? std::vector<Id>{} : std::vector<Id>{id - 1}));
  }
  return schedule;
}

TEST(Executor, TurnsAnErrorOfAnyLaneIntoOneExceptionThatNamesTheTaskAndRunsAgain) {
  const auto device = make_cpu_device();
  const Schedule schedule = chain();
  Id fails = -1;
  int kind = 0;
  std::atomic<int> ran{0};
  Runner runner([&](const Task& task, Stream&) {
    ++ran;
    if (&task - schedule.tasks.data() != fails) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the others are waiting by now
    if (kind == 0) fail(ExitCode::kFiles, "no such shard");
    if (kind == 1) throw InternalError("broken");
    if (kind == 2) throw std::runtime_error("library");
    throw 7;
  });
  Executor executor(*device, table_of(runner));
  for (kind = 0; kind < 4; ++kind) {
    for (fails = 0; fails < static_cast<Id>(schedule.tasks.size()); ++fails) {
      ran = 0;
      const std::string name = schedule.tasks[fails].name + ": ";
      try {
        executor.run(schedule);
        FAIL() << name;
      } catch (const Error& error) {
        EXPECT_EQ(kind, 0);
        EXPECT_EQ(error.code(), ExitCode::kFiles);
        EXPECT_EQ(error.what(), name + "no such shard");
      } catch (const InternalError& error) {
        EXPECT_NE(kind, 0);
        EXPECT_THAT(error.what(), HasSubstr(name));
      }
      EXPECT_EQ(ran, fails + 1);  // what came after it never started
    }
  }
  fails = -1;
  ran = 0;
  executor.run(schedule);
  EXPECT_EQ(ran, static_cast<int>(schedule.tasks.size()));
}

TEST(Executor, SynchronisesWhatIsInFlightBeforeItReportsAnError) {
  DeviceFaults slow;
  slow.lanes = {"h2d"};
  slow.longest_delay_seconds = 0.05;
  const auto device = make_faulty_device(make_cpu_device(), slow);
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kH2d, "slow copy"), task_on(Lane::kCompute, "fails", {0})};
  auto from = std::make_unique<std::uint64_t>(42), to = std::make_unique<std::uint64_t>(0);
  Runner runner([&](const Task& task, Stream& stream) {
    if (task.name == "fails") throw std::runtime_error("now");
    stream.copy(reinterpret_cast<std::byte*>(to.get()), reinterpret_cast<const std::byte*>(from.get()), 8);
  });
  Executor executor(*device, table_of(runner));
  EXPECT_THROW(executor.run(schedule), InternalError);
  EXPECT_EQ(*to, 42u);  // done, so its memory may go
}

TEST(Executor, ReportsTheFirstTaskInTheTotalOrderWhenAnAsynchronousErrorSpreads) {
  DeviceFaults faults;
  faults.lanes = {"h2d"};
  faults.fail_copy = 1;
  faults.longest_delay_seconds = 0.01;
  const auto device = make_faulty_device(make_cpu_device(), faults);
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kCompute, "innocent"), task_on(Lane::kH2d, "culprit"),
                    task_on(Lane::kCompute, "victim", {1})};
  std::uint64_t from = 1, to = 0;
  Runner runner([&](const Task& task, Stream& stream) {
    if (task.lane == Lane::kH2d) {
      stream.copy(reinterpret_cast<std::byte*>(&to), reinterpret_cast<const std::byte*>(&from), 8);
    } else {
      stream.call([] {});  // where the victim meets the error
    }
  });
  Executor executor(*device, table_of(runner));
  try {
    executor.run(schedule);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("culprit: "));
  }
  executor.run(schedule);  // new streams: the second copy works
  EXPECT_EQ(to, 1u);
}

TEST(Executor, HasTheBooksOfThePresentRunAlsoWhenItFailsBeforeItsFirstTask) {
  DeviceFaults faults;
  faults.lanes = {"compute"};
  faults.fail_copy = 1;
  const auto device = make_faulty_device(make_cpu_device(), faults);
  Runner runner([](const Task&, Stream&) {});
  Executor executor(*device, table_of(runner));
  Schedule one;
  one.tasks = {task_on(Lane::kCompute, "task")};
  executor.run(one);
  ASSERT_EQ(executor.completed(), std::vector<bool>(1, true));

  std::byte from{1}, to{0};
  executor.stream(Lane::kCompute).copy(&to, &from, 1);
  RunOptions traced;
  traced.trace = true;
  const Schedule longer = chain();
  EXPECT_THROW(executor.run(longer, traced), Error);
  EXPECT_EQ(executor.started(), std::vector<bool>(longer.tasks.size(), false));
  EXPECT_EQ(executor.completed(), std::vector<bool>(longer.tasks.size(), false));
  EXPECT_EQ(executor.run(longer, traced).timeline.spans.size(), longer.tasks.size());  // on a new stream
}

TEST(Executor, NeverAbandonsOnceAnUpdateMayHaveBegun) {
  const auto device = make_cpu_device();
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kCompute, "before"), task_on(Lane::kGpuUpdate, "update", {0}, Op::kUpdate)};
  for (int i = 0; i < 100; ++i) schedule.tasks.push_back(task_on(Lane::kCompute, "beside"));
  schedule.tasks.push_back(task_on(Lane::kCompute, "behind", {1}));
  for (int i = 0; i < 10; ++i) schedule.tasks.push_back(task_on(Lane::kCompute, "later"));
  int steps_given_up = 0;
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> updates{0}, ran{0};
    bool behind = false;  // compute's own thread only
    Runner runner([&](const Task& task, Stream&) {
      ++ran;
      if (task.op == Op::kUpdate) ++updates;
      if (task.name == "behind") behind = true;
    });
    Executor executor(*device, table_of(runner));
    RunOptions options;
    int asked = 0;
    options.abandon = [&] {
      EXPECT_FALSE(behind);
      return ++asked == 1 + round;
    };
    const bool abandoned = executor.run(schedule, options).abandoned;
    steps_given_up += abandoned ? 1 : 0;
    EXPECT_EQ(updates, abandoned ? 0 : 1);
    if (!abandoned) {
      EXPECT_EQ(ran, static_cast<int>(schedule.tasks.size()));
    }
  }
  EXPECT_GE(steps_given_up, 1);  // the first task is always asked for
}

TEST(Executor, EndsTheStepWhenAnUpdateBeginsWhileItIsAskedWhetherToAbandon) {
  const auto device = make_cpu_device();
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kGpuUpdate, "update", {}, Op::kUpdate), task_on(Lane::kCompute, "asked for")};
  std::atomic<bool> updated{false};
  int ran = 0;
  Runner runner([&](const Task& task, Stream&) {
    if (task.op == Op::kUpdate) {
      updated = true;
    } else {
      ++ran;
    }
  });
  Executor executor(*device, table_of(runner));
  RunOptions options;
  options.abandon = [&] {
    while (!updated) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return true;
  };
  EXPECT_FALSE(executor.run(schedule, options).abandoned);
  EXPECT_EQ(ran, 1);
}

TEST(Executor, RefusesAnEdgeThatPointsForward) {
  const auto device = make_cpu_device();
  Runner runner([](const Task&, Stream&) {});
  Executor executor(*device, table_of(runner));
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kCompute, "a", {1}), task_on(Lane::kH2d, "b")};
  EXPECT_THROW(executor.run(schedule), InternalError);
}

TEST(Executor, RunsAnEmptySchedule) {
  const auto device = make_cpu_device();
  Runner runner([](const Task&, Stream&) {});
  Executor executor(*device, table_of(runner));
  RunOptions options;
  options.trace = true;
  EXPECT_EQ(executor.run({}, options).timeline.seconds, 0);
}

}  // namespace
}  // namespace protrain
