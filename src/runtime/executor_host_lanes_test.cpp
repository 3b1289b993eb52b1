// Lanes that do their work on a thread of the host, updates of the step before, and faults at chosen tasks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "device/faulty_device.h"
#include "runtime/executor_test_support.h"

namespace protrain {
namespace {

using test::Runner;
using test::table_of;
using test::task_on;

constexpr Lane kHostLanes[] = {Lane::kCpuUpdate, Lane::kDiskRead, Lane::kDiskWrite};

std::byte* bytes_of(std::uint64_t& value) { return reinterpret_cast<std::byte*>(&value); }

TEST(HostLane, BeginsWhenItsDeviceWorkHasEndedAndEndsBeforeTheDeviceGoesOn) {
  for (const Lane lane : kHostLanes) {
    const auto device = make_faulty_device(make_cpu_device(), {.longest_delay_seconds = 2e-3});
    Schedule schedule;
    schedule.tasks = {task_on(Lane::kD2h, "gradient leaves"), task_on(lane, "update", {0}),
                      task_on(Lane::kH2d, "weight arrives", {1})};
    std::uint64_t on_device = 0, gradient = 0, weight = 0, back = 0;
    Runner runner([&](const Task& task, Stream& stream) {
      if (task.lane == Lane::kD2h) stream.copy(bytes_of(gradient), bytes_of(on_device), 8);
      if (task.lane == lane) {
        stream.call([&] { weight = gradient + 1; });  // no race (TSan), and the copy's value
        EXPECT_TRUE(stream.record().ready());
        EXPECT_EQ(stream.native(), nullptr);
      }
      if (task.lane == Lane::kH2d) stream.copy(bytes_of(back), bytes_of(weight), 8);
    });
    Executor executor(*device, table_of(runner));
    for (std::uint64_t round = 1; round <= 5; ++round) {
      on_device = 10 * round;
      executor.run(schedule);
      EXPECT_EQ(back, 10 * round + 1);
    }
  }
}

TEST(HostLane, CanBeMadeLateAndFailLikeAnyOther) {
  const Schedule schedule = [] {
    Schedule made;
    made.tasks = {task_on(Lane::kCpuUpdate, "culprit"), task_on(Lane::kCompute, "victim", {0})};
    return made;
  }();
  std::uint64_t from = 7, to = 0;
  Runner runner([&](const Task&, Stream& stream) { stream.copy(bytes_of(to), bytes_of(from), 8); });

  const auto late = make_faulty_device(make_cpu_device(), {.lanes = {"cpu_update"}, .longest_delay_seconds = 2e-3});
  Executor slow(*late, table_of(runner));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) slow.run(schedule);
  // Two operations a run, each 1 ms late on average.
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0.01);

  const auto broken = make_faulty_device(make_cpu_device(), {.lanes = {"cpu_update"}, .fail_copy = 1});
  Executor failing(*broken, table_of(runner));
  try {
    failing.run(schedule);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "culprit: injected fault: copy 1 failed, on lane cpu_update");
  }
  EXPECT_EQ(failing.completed(), std::vector<bool>(2, false));
}

TEST(HostLane, MeetsAnErrorOfTheDeviceWorkThatItWaitsForAndTheCulpritIsNamed) {
  const auto device =
      make_faulty_device(make_cpu_device(), {.lanes = {"d2h"}, .longest_delay_seconds = 2e-3, .fail_copy = 1});
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kD2h, "culprit"), task_on(Lane::kCpuUpdate, "update", {0}, Op::kUpdate)};
  std::uint64_t from = 7, to = 0;
  std::atomic<bool> updated = false;
  Runner runner([&](const Task& task, Stream& stream) {
    if (task.op == Op::kUpdate) {
      updated = true;
    } else {
      stream.copy(bytes_of(to), bytes_of(from), 8);
    }
  });
  Executor executor(*device, table_of(runner));
  try {
    executor.run(schedule);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "culprit: injected fault: copy 1 failed, on lane d2h");
  }
  EXPECT_FALSE(updated);
}

TEST(HostLane, IsTracedOnTheDevicesClock) {
  const auto device = make_cpu_device();
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kD2h, "a"), task_on(Lane::kCpuUpdate, "b", {0}), task_on(Lane::kH2d, "c", {1}),
                    task_on(Lane::kDiskWrite, "d", {1})};
  Runner runner([](const Task&, Stream& stream) {
    stream.call([] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  });
  Executor executor(*device, table_of(runner));
  const Timeline timeline = executor.run(schedule, {.trace = true}).timeline;
  ASSERT_EQ(timeline.spans.size(), schedule.tasks.size());
  for (const Span& span : timeline.spans) {
    EXPECT_GE(span.end_seconds - span.begin_seconds, 0.003);
    for (const Id earlier : schedule.tasks[span.task].after) {
      EXPECT_GE(span.begin_seconds, timeline.spans[earlier].end_seconds);
    }
  }
}

// A pending update, a load of what it wrote, compute; then an update of this step.
Schedule with_pending() {
  Schedule schedule;
  schedule.tasks = {task_on(Lane::kCompute, "first"),
                    task_on(Lane::kCpuUpdate, "pending 0", {}, Op::kUpdate),
                    task_on(Lane::kH2d, "load", {1}),
                    task_on(Lane::kCompute, "second", {2}),
                    task_on(Lane::kCpuUpdate, "pending 1", {3}, Op::kUpdate),
                    task_on(Lane::kCpuUpdate, "of this step", {4}, Op::kUpdate),
                    task_on(Lane::kCompute, "third", {5})};
  schedule.tasks[1].pending = schedule.tasks[4].pending = true;
  return schedule;
}

TEST(Abandon, IsPossibleAfterPendingUpdatesAndTellsWhichAreDone) {
  const auto device = make_faulty_device(make_cpu_device(), {.longest_delay_seconds = 1e-3});
  const Schedule schedule = with_pending();
  std::atomic<int> started = 0;
  Runner runner([&](const Task&, Stream&) { ++started; });
  Executor executor(*device, table_of(runner));
  int asked = 0;
  RunOptions options;
  options.abandon = [&] { return ++asked == 2; };  // at "second", which waits for the first pending update
  EXPECT_TRUE(executor.run(schedule, options).abandoned);
  EXPECT_EQ(executor.completed(), (std::vector<bool>{true, true, true, false, false, false, false}));
  EXPECT_EQ(started, 3);

  asked = 0;
  options.abandon = [&] { return ++asked == 3; };  // once this step's own update is issued nobody is asked
  EXPECT_FALSE(executor.run(schedule, options).abandoned);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(executor.completed(), std::vector<bool>(7, true));
}

TEST(Fault, AtAChosenTaskEndsTheRunThereAndWhatWasDoneIsKnown) {
  const auto device = make_cpu_device();
  const Schedule schedule = with_pending();
  std::array<std::atomic<bool>, 7> ran{};
  Runner runner(
      [&](const Task& task, Stream&) { ran[static_cast<std::size_t>(&task - schedule.tasks.data())] = true; });
  Executor executor(*device, table_of(runner));
  for (Id failing = 0; failing < 7; ++failing) {
    for (auto& one : ran) one = false;
    RunOptions options;
    options.before_task = [&](Id id, const Task& task) {
      EXPECT_EQ(&task, &schedule.tasks[id]);
      if (id == failing) fail(ExitCode::kFiles, "planted");
    };
    try {
      executor.run(schedule, options);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), schedule.tasks[failing].name + ": planted");
    }
    for (std::size_t id = 0; id < 7; ++id) EXPECT_EQ(executor.completed()[id], ran[id]) << id;
    EXPECT_FALSE(ran[failing]);
  }
}

TEST(FaultDeathTest, AtAChosenTaskMayKillTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto dies = [] {
    const auto device = make_cpu_device();
    const Schedule schedule = with_pending();
    Runner runner([](const Task&, Stream&) {});
    Executor executor(*device, table_of(runner));
    RunOptions options;
    options.before_task = [](Id id, const Task&) {
      if (id == 4) std::raise(SIGKILL);
    };
    executor.run(schedule, options);
  };
  EXPECT_EXIT(dies(), ::testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace protrain
