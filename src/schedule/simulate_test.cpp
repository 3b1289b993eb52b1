#include "schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "schedule/recent_load.h"
#include "schedule/test_rates.h"

namespace protrain {
namespace {

// A graph as lanes and edges alone.
struct Graphed {
  Schedule schedule;
  std::vector<double> seconds;

  Id add(Lane lane, double duration, std::vector<Id> after = {}) {
    Task task;
    task.lane = lane;
    task.after = std::move(after);
    task.name = fmt::format("task {}", schedule.tasks.size());
    schedule.tasks.push_back(std::move(task));
    seconds.push_back(duration);
    return static_cast<Id>(seconds.size()) - 1;
  }
  Timeline run(const Rates& rates = {}) const {
    return simulate(schedule, std::vector<TaskTime>(seconds.begin(), seconds.end()), rates);
  }
};

Graphed random_graph(std::mt19937& random, std::size_t tasks, std::size_t lanes) {
  Graphed graph;
  for (std::size_t id = 0; id < tasks; ++id) {
    std::vector<Id> after;
    for (std::size_t edges = id == 0 ? 0 : random() % 3; edges > 0; --edges) {
      after.push_back(static_cast<Id>(id - 1 - random() % std::min<std::size_t>(id, 12)));
    }
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    graph.add(static_cast<Lane>(random() % lanes), random() % 8 == 0 ? 0 : test::between(random, 0.1, 2),
              std::move(after));
  }
  return graph;
}

Rates slowing(std::mt19937& random) { return test::random_rates({}, random, true); }

// The rule of simulate.h word for word, in small steps of time: which tasks work is looked up anew in each.
std::vector<double> ends_in_small_steps(const Graphed& graph, const Rates& rates, double step) {
  const auto& tasks = graph.schedule.tasks;
  std::vector<double> left = graph.seconds;
  std::vector<double> ends(tasks.size(), -1);
  double now = 0;
  for (std::size_t open = tasks.size(); open > 0; now += step) {
    std::array<Id, kLanes> works{};
    for (bool again = true; again;) {  // tasks of no time end at once and let others begin
      again = false;
      works.fill(-1);
      std::array<bool, kLanes> taken{};
      for (std::size_t id = 0; id < tasks.size(); ++id) {
        const auto lane = static_cast<std::size_t>(tasks[id].lane);
        if (ends[id] >= 0 || taken[lane]) continue;
        taken[lane] = true;
        const auto& after = tasks[id].after;
        if (std::any_of(after.begin(), after.end(), [&](Id one) { return ends[one] < 0; })) continue;
        if (left[id] > 0) {
          works[lane] = static_cast<Id>(id);
          continue;
        }
        ends[id] = now;
        --open;
        again = true;
      }
    }
    for (std::size_t a = 0; a < kLanes; ++a) {
      if (works[a] < 0) continue;
      double slowed = 1;
      for (std::size_t b = 0; b < kLanes; ++b) slowed *= b != a && works[b] >= 0 ? rates.slowdown[a][b] : 1;
      left[works[a]] -= step / slowed;
    }
  }
  return ends;
}

TEST(Simulate, CallsAreSlowerTheMoreTheLaneHasWorkedOfLate) {
  Graphed graph;
  std::vector<TaskTime> times;
  const auto add = [&](Lane lane, const TaskTime& time, const std::vector<Id>& after) {
    graph.add(lane, 0, after);
    times.push_back(time);
  };
  constexpr int kCalls = 1000;
  for (int i = 0; i < kCalls; ++i) add(Lane::kCompute, {1e-3, 0.5e-3}, {});
  add(Lane::kH2d, 10, {});
  for (int i = 0; i < kCalls; ++i) add(Lane::kCompute, {1e-3, 0.5e-3}, {kCalls});
  const Timeline timeline = simulate(graph.schedule, times, {});
  const auto seconds = [&](int id) { return timeline.spans[id].end_seconds - timeline.spans[id].begin_seconds; };
  for (int id = 0; id < kCalls; ++id) EXPECT_NEAR(seconds(id), 1e-3, 1e-9);  // the load was 1 before
  EXPECT_NEAR(seconds(kCalls + 1), 0.5e-3, 1e-9);
  for (int id = kCalls + 2; id <= 2 * kCalls; ++id) EXPECT_GE(seconds(id), seconds(id - 1) - 1e-9);
  EXPECT_NEAR(seconds(2 * kCalls), 1e-3, 1e-6);
  // At a load of 1/2 and less calls are rested; it takes kMemory x ln 2 of work to get there.
  const double until = RecentLoad::kMemory * std::log(2) / 0.5e-3;
  EXPECT_NEAR(seconds(kCalls + static_cast<int>(until) - 3), 0.5e-3, 1e-9);
  EXPECT_GT(seconds(kCalls + static_cast<int>(until) + 3), 0.5e-3 + 1e-6);
}

TEST(Simulate, TakesNoTimeForNoTasks) { EXPECT_EQ(Graphed().run().seconds, 0); }

TEST(Simulate, RunsTheTasksOfOneLaneOneAfterTheOther) {
  Graphed graph;
  for (const double seconds : {1.0, 0.25, 0.0, 3.5}) graph.add(Lane::kD2h, seconds);
  std::mt19937 random(1);
  const Timeline timeline = graph.run(slowing(random));  // nobody else works
  EXPECT_EQ(timeline.seconds, 4.75);
  EXPECT_EQ(timeline.spans[3].begin_seconds, 1.25);
}

TEST(Simulate, TakesAsLongAsTheLongestPathWhereNothingSlowsDown) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    const Graphed graph = random_graph(random, 80, kLanes);
    const Timeline timeline = graph.run();
    std::vector<double> ends;
    std::array<double, kLanes> free{};
    for (std::size_t id = 0; id < graph.seconds.size(); ++id) {
      const Task& task = graph.schedule.tasks[id];
      double begin = free[static_cast<std::size_t>(task.lane)];
      for (const Id earlier : task.after) begin = std::max(begin, ends[earlier]);
      ends.push_back(begin + graph.seconds[id]);
      free[static_cast<std::size_t>(task.lane)] = ends.back();
      ASSERT_EQ(timeline.spans[id].begin_seconds, begin) << task.name;
      ASSERT_EQ(timeline.spans[id].end_seconds, ends.back()) << task.name;
    }
    EXPECT_EQ(timeline.seconds, *std::max_element(ends.begin(), ends.end()));
  }
}

TEST(Simulate, SlowsALaneDownOnlyWhileTheOtherWorks) {
  Rates rates;
  const auto h2d = static_cast<std::size_t>(Lane::kH2d);
  const auto d2h = static_cast<std::size_t>(Lane::kD2h);
  rates.slowdown[h2d][d2h] = 2;
  rates.slowdown[d2h][h2d] = 1.25;
  Graphed graph;
  graph.add(Lane::kH2d, 3);
  graph.add(Lane::kD2h, 1);
  // Together until 1.25: of the 3 seconds 0.625 are done by then.
  const Timeline timeline = graph.run(rates);
  EXPECT_DOUBLE_EQ(timeline.spans[1].end_seconds, 1.25);
  EXPECT_DOUBLE_EQ(timeline.spans[0].end_seconds, 1.25 + 2.375);
}

TEST(Simulate, MultipliesTheSlowdownsOfAllThatWork) {
  Rates rates;
  const auto compute = static_cast<std::size_t>(Lane::kCompute);
  rates.slowdown[compute][static_cast<std::size_t>(Lane::kH2d)] = 1.5;
  rates.slowdown[compute][static_cast<std::size_t>(Lane::kCpuUpdate)] = 2;
  Graphed graph;
  graph.add(Lane::kCompute, 1);
  graph.add(Lane::kH2d, 10);
  graph.add(Lane::kCpuUpdate, 10);
  EXPECT_DOUBLE_EQ(graph.run(rates).spans[0].end_seconds, 3);
}

TEST(Simulate, TwoLanesThatOverlapFullyTakeTheSlowedTime) {
  Rates rates;
  for (auto& row : rates.slowdown) row.fill(1.3);
  Graphed graph;
  for (int i = 0; i < 10; ++i) {
    graph.add(Lane::kCompute, 2);
    graph.add(Lane::kH2d, 2);
  }
  EXPECT_NEAR(graph.run(rates).seconds, 26, 1e-12);
}

TEST(Simulate, AgreesWithAWalkInSmallStepsOfTime) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 15; ++round) {
    const std::size_t tasks = 10 + random() % 15;
    const Graphed graph = random_graph(random, tasks, 2 + random() % (kLanes - 1));
    const Rates rates = slowing(random);
    constexpr double kStep = 5e-4;
    const auto ends = ends_in_small_steps(graph, rates, kStep);
    const Timeline timeline = graph.run(rates);
    // Each task is late by a step at most, and so is all that waits for it; more where that slows others down.
    const double allowed = 4 * kStep * static_cast<double>(tasks);
    for (std::size_t id = 0; id < tasks; ++id) {
      ASSERT_NEAR(timeline.spans[id].end_seconds, ends[id], allowed) << "round " << round << " task " << id;
    }
  }
}

TEST(Simulate, KeepsLaneOrderAndEdgesAndIsNeverFasterThanALane) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    const Graphed graph = random_graph(random, 200, kLanes);
    const Timeline timeline = graph.run(slowing(random));
    ASSERT_EQ(timeline.spans.size(), graph.seconds.size());
    std::array<double, kLanes> sums{};
    std::array<double, kLanes> ends{};
    for (std::size_t id = 0; id < graph.seconds.size(); ++id) {
      const Task& task = graph.schedule.tasks[id];
      const Span& span = timeline.spans[id];
      const auto lane = static_cast<std::size_t>(task.lane);
      ASSERT_EQ(span.task, static_cast<Id>(id));
      ASSERT_EQ(span.lane, task.lane);
      ASSERT_GE(span.begin_seconds, ends[lane]);
      for (const Id earlier : task.after) ASSERT_GE(span.begin_seconds, timeline.spans[earlier].end_seconds);
      ASSERT_GE(span.end_seconds - span.begin_seconds, graph.seconds[id] * (1 - 1e-9) - 1e-12);
      ends[lane] = span.end_seconds;
      sums[lane] += graph.seconds[id];
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) EXPECT_GE(timeline.seconds, sums[lane] * (1 - 1e-9));
    EXPECT_EQ(timeline.seconds, *std::max_element(ends.begin(), ends.end()));
  }
}

TEST(Simulate, RefusesTimesThatAreNone) {
  Graphed graph;
  graph.add(Lane::kCompute, -1);
  EXPECT_THROW(graph.run(), InternalError);
  graph.seconds = {std::nan("")};
  EXPECT_THROW(graph.run(), InternalError);
  graph.seconds = {1, 1};
  EXPECT_THROW(graph.run(), InternalError);
}

}  // namespace
}  // namespace protrain
