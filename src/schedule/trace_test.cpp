#include "schedule/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace protrain {
namespace {

TEST(ChromeTrace, IsJsonWithOneCompleteEventASpanInMicroseconds) {
  Schedule schedule;
  schedule.tasks.resize(2);
  schedule.tasks[0].name = "plain";
  schedule.tasks[1].name = "a \"quoted\\ name\n";
  schedule.tasks[1].lane = Lane::kH2d;
  schedule.tasks[1].op = Op::kCopy;
  Timeline timeline;
  timeline.spans = {{0, Lane::kCompute, 0.001, 0.0035}, {1, Lane::kH2d, 0.5, 0.75}};
  timeline.seconds = 0.75;

  const auto root = nlohmann::json::parse(chrome_trace(schedule, timeline));
  std::vector<nlohmann::json> events, lanes;
  for (const auto& event : root.at("traceEvents")) (event.at("ph") == "X" ? events : lanes).push_back(event);
  ASSERT_EQ(events.size(), 2u);
  ASSERT_EQ(lanes.size(), static_cast<std::size_t>(kLanes));
  EXPECT_EQ(events[0].at("name"), "plain");
  EXPECT_DOUBLE_EQ(events[0].at("ts"), 1000);
  EXPECT_DOUBLE_EQ(events[0].at("dur"), 2500);
  EXPECT_EQ(events[1].at("name"), schedule.tasks[1].name);
  EXPECT_EQ(lanes.at(events[1].at("tid")).at("args").at("name"), "h2d");
}

}  // namespace
}  // namespace protrain
