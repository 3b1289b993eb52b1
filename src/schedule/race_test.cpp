#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"
#include "schedule/builder.h"
#include "schedule/schedule.h"

namespace protrain {
namespace {

using ::testing::HasSubstr;

Task touching(Lane lane, std::vector<Access> access, std::vector<Id> after = {}) {
  static int count = 0;
  Task task;
  task.lane = lane;
  task.access = std::move(access);
  task.after = std::move(after);
  task.name = fmt::format("task {}", count++);
  return task;
}

TEST(Race, IsFoundBetweenLanesOnlyAndOnlyWhereOneWritesTheSameBytes) {
  const Range a{Tier::kDevice, 0, 100};
  const Range overlapping{Tier::kDevice, 99, 10};
  const Range beside{Tier::kDevice, 100, 10};
  const Range elsewhere{Tier::kPinned, 0, 100};
  const auto pair = [](Lane lane, const Access& first, const Access& second, std::vector<Id> after = {}) {
    return race({{touching(Lane::kCompute, {first}), touching(lane, {second}, std::move(after))}, {}});
  };
  EXPECT_THAT(pair(Lane::kH2d, {a, true}, {overlapping, false}), HasSubstr("bytes 99 to 100"));
  EXPECT_NE(pair(Lane::kH2d, {a, false}, {overlapping, true}), "");
  EXPECT_NE(pair(Lane::kH2d, {a, true}, {a, true}), "");
  EXPECT_EQ(pair(Lane::kH2d, {a, false}, {a, false}), "");
  EXPECT_EQ(pair(Lane::kH2d, {a, true}, {beside, true}), "");
  EXPECT_EQ(pair(Lane::kH2d, {a, true}, {elsewhere, true}), "");
  EXPECT_EQ(pair(Lane::kCompute, {a, true}, {a, true}), "");
  EXPECT_EQ(pair(Lane::kH2d, {a, true}, {a, true}, {0}), "");
  EXPECT_THAT(pair(Lane::kH2d, {a, true}, {a, true}, {1}), HasSubstr("not before it"));
}

// A life that begins or ends writes its range.
std::vector<Access> all_accesses(const Task& task) {
  std::vector<Access> all = task.access;
  for (const Range& range : task.acquires) all.push_back({range, true});
  for (const Range& range : task.releases) all.push_back({range, true});
  return all;
}

// Every pair of tasks against reachability by walking the edges.
bool has_race_by_brute_force(const Schedule& schedule) {
  const auto n = static_cast<Id>(schedule.tasks.size());
  std::vector<std::set<Id>> before(n);
  for (Id id = 0; id < n; ++id) {
    std::vector<Id> direct = schedule.tasks[id].after;
    for (Id other = 0; other < id; ++other) {
      if (schedule.tasks[other].lane == schedule.tasks[id].lane) direct.push_back(other);
    }
    for (const Id other : direct) {
      before[id].insert(other);
      before[id].insert(before[other].begin(), before[other].end());
    }
    for (Id other = 0; other < id; ++other) {
      if (before[id].count(other) != 0) continue;
      for (const Access& a : all_accesses(schedule.tasks[id])) {
        for (const Access& b : all_accesses(schedule.tasks[other])) {
          if ((a.writes || b.writes) && a.range.tier == b.range.tier &&
              a.range.offset < b.range.offset + b.range.bytes && b.range.offset < a.range.offset + a.range.bytes) {
            return true;
          }
        }
      }
    }
  }
  return false;
}

constexpr int kRounds = 2000;

TEST(Race, AgreesWithBruteForceOnRandomGraphs) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int races = 0;
  for (int round = 0; round < kRounds; ++round) {
    Schedule schedule;
    const int lanes = 1 + below(kLanes);
    const int edges = below(8);
    const int tasks = 2 + below(14);
    for (int id = 0; id < tasks; ++id) {
      std::vector<Access> access(static_cast<std::size_t>(below(3)));
      for (Access& one : access) one = {{static_cast<Tier>(below(2)), below(40), 1 + below(12)}, below(4) == 0};
      std::vector<Id> after;
      for (int i = 0; id > 0 && i < edges; ++i) after.push_back(below(id));
      schedule.tasks.push_back(touching(static_cast<Lane>(below(lanes)), access, after));
      Task& task = schedule.tasks.back();
      if (below(6) == 0) task.acquires.push_back({static_cast<Tier>(below(2)), below(40), 1 + below(12)});
      if (below(6) == 0) task.releases.push_back({static_cast<Tier>(below(2)), below(40), 1 + below(12)});
    }
    const bool expected = has_race_by_brute_force(schedule);
    races += expected ? 1 : 0;
    ASSERT_EQ(!race(schedule).empty(), expected);
  }
  EXPECT_GT(races, kRounds / 10);
  EXPECT_LT(races, kRounds * 9 / 10);
}

TEST(Race, IsFoundWhereALifeEndsWhileAnotherLaneStillReads) {
  const Range a{Tier::kDevice, 0, 100};
  Schedule schedule{{touching(Lane::kD2h, {{a, false}}), touching(Lane::kCompute, {{a, false}})}, {}};
  EXPECT_EQ(race(schedule), "");
  schedule.tasks[1].releases = {a};
  EXPECT_NE(race(schedule), "");
  schedule.tasks[1].after = {0};
  EXPECT_EQ(race(schedule), "");
}

// The builder's edges are enough, and none of them is idle.
TEST(Builder, AddsTheEdgesThatAreNeededAndNoOthers) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; ++round) {
    ScheduleBuilder builder;
    const int lanes = 2 + below(kLanes - 1);
    for (int id = 0; id < 14; ++id) {
      std::vector<Access> access(static_cast<std::size_t>(below(3)));
      for (Access& one : access) one = {{static_cast<Tier>(below(2)), below(40), 1 + below(12)}, below(3) == 0};
      Task task = touching(static_cast<Lane>(below(lanes)), access);
      if (below(6) == 0) task.releases.push_back({static_cast<Tier>(below(2)), below(40), 1 + below(12)});
      builder.add(std::move(task));
    }
    Schedule schedule = builder.take();
    ASSERT_FALSE(has_race_by_brute_force(schedule));
    for (Task& task : schedule.tasks) {
      const std::vector<Id> after = task.after;
      for (const Id edge : after) {
        std::erase(task.after, edge);
        ASSERT_TRUE(has_race_by_brute_force(schedule)) << task.name << " after " << edge;
        task.after = after;
      }
    }
  }
}

}  // namespace
}  // namespace protrain
