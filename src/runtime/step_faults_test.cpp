// What a step leaves behind when something in it fails, is given up, or is watched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const RigOptions kRich{DType::kBf16, true, 2, 2, 1, Modes::kMixed, {}};

// The next step of a rig whose step failed or was given up equals the first step of a fresh one.
void expect_as_if_nothing_had_been(Rig& rig) {
  RigOptions options = rig.options;
  options.faults = {};
  Rig fresh(options);
  const Batch batch(kTrainShape, rig.options.accumulation, kSeed + 9);
  const StepControl expected = fresh.train(0, batch).control;
  const StepControl found = rig.train(0, batch).control;
  EXPECT_EQ(found.gradient_norm, expected.gradient_norm);
  EXPECT_EQ(found.loss_sum, expected.loss_sum);
  EXPECT_EQ(all_state(rig), all_state(fresh));
}

TEST(Fault, InAnyBlockCallEndsTheStepWithOneErrorThatNamesTheTask) {
  Rig counting(kRich);
  const Batch batch(kTrainShape, 2, kSeed);
  int calls = 0;
  counting.before_call = [&](const BlockCall&) { ++calls; };
  counting.train(0, batch);
  ASSERT_GT(calls, 10);

  std::vector<std::string> names;
  for (const Task& task : counting.runner->schedule(counting.train_shape(0, 2)).tasks) {
    if (task.op == Op::kRunBlock) names.push_back(task.name);
  }
  ASSERT_EQ(names.size(), static_cast<std::size_t>(calls));

  for (int failing = 0; failing < calls; ++failing) {
    Rig rig(kRich);
    const auto before = all_state(rig);
    int call_number = 0;
    rig.before_call = [&](const BlockCall&) {
      if (call_number++ == failing) fail(ExitCode::kData, "boom");
    };
    try {
      rig.train(0, batch);
      FAIL() << "call " << failing << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_EQ(std::string(error.what()), names[failing] + ": boom");
    }
    EXPECT_EQ(call_number, failing + 1);  // nothing ran after it
    EXPECT_EQ(all_state(rig), before);
    rig.before_call = [](const BlockCall&) {};
    expect_as_if_nothing_had_been(rig);
  }
}

TEST(Fault, InACopyNamesTheCopyEvenWhenAnotherLaneMeetsItFirst) {
  for (const auto& [lane, name] : {std::pair{"h2d", "upload batch"}, std::pair{"d2h", "download results"}}) {
    for (const double delay : {0.0, 2e-3}) {
      RigOptions options = kRich;
      options.faults.lanes = {lane};
      options.faults.fail_copy = 1;
      options.faults.longest_delay_seconds = delay;
      Rig rig(options);
      try {
        rig.train(0, Batch(kTrainShape, 2, kSeed));
        FAIL() << lane << " did not fail";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), StartsWith(std::string(name) + ": ")) << delay;
        EXPECT_THAT(error.what(), HasSubstr("injected fault: copy 1"));
      }
    }
  }
}

TEST(Fault, InAnAsynchronousCopyOfABlockNamesTheBlocksTask) {
  RigOptions options = kRich;
  options.faults.lanes = {"compute"};
  options.faults.fail_copy = 2;  // the first is the embedding's output, this one the first layer's
  Rig rig(options);
  const auto before = all_state(rig);
  try {
    rig.train(0, Batch(kTrainShape, 2, kSeed));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), StartsWith("forward layer 0 micro-batch 0: "));
  }
  EXPECT_EQ(all_state(rig), before);
  expect_as_if_nothing_had_been(rig);
}

TEST(Abandon, AtAnyComputeTaskLeavesNoTrace) {
  const Batch batch(kTrainShape, 2, kSeed);
  int asked = 0;
  Rig counting(kRich);
  RunOptions options;
  options.abandon = [&] { return ++asked < 0; };
  EXPECT_FALSE(counting.train(0, batch, options).run.abandoned);
  ASSERT_GT(asked, 10);

  for (int at = 1; at <= asked; ++at) {
    Rig rig(kRich);
    const auto before = all_state(rig);
    int now = 0;
    RunOptions giving_up;
    giving_up.abandon = [&] { return ++now == at; };
    EXPECT_TRUE(rig.train(0, batch, giving_up).run.abandoned);
    EXPECT_EQ(now, at);  // not asked again
    EXPECT_EQ(all_state(rig), before);
    expect_as_if_nothing_had_been(rig);
  }
}

TEST(Trace, HasOneSpanATaskAndRespectsLanesAndEdges) {
  RigOptions options = kRich;
  options.faults.longest_delay_seconds = 5e-4;
  Rig rig(options);
  RunOptions traced;
  traced.trace = true;
  const Batch batch(kTrainShape, 2, kSeed);
  for (int round = 0; round < 2; ++round) {
    const Timeline timeline = rig.train(0, batch, traced).run.timeline;
    const Schedule& schedule = rig.runner->schedule(rig.train_shape(0, 2));
    ASSERT_EQ(timeline.spans.size(), schedule.tasks.size());
    std::array<double, kLanes> lane_end{};
    double last = 0;
    for (Id id = 0; id < static_cast<Id>(schedule.tasks.size()); ++id) {
      const Span& span = timeline.spans[id];
      EXPECT_EQ(span.task, id);
      EXPECT_EQ(span.lane, schedule.tasks[id].lane);
      EXPECT_LE(span.begin_seconds, span.end_seconds);
      EXPECT_GE(span.begin_seconds, lane_end[static_cast<int>(span.lane)]);
      for (const Id earlier : schedule.tasks[id].after) {
        EXPECT_GE(span.begin_seconds, timeline.spans[earlier].end_seconds) << schedule.tasks[id].name;
      }
      lane_end[static_cast<int>(span.lane)] = span.end_seconds;
      last = std::max(last, span.end_seconds);
    }
    EXPECT_EQ(timeline.seconds, last);
    EXPECT_GT(last, 0);
  }
  EXPECT_TRUE(rig.train(1, batch).run.timeline.spans.empty());
}

}  // namespace
}  // namespace protrain::toy
