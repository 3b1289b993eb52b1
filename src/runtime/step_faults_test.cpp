// What a step leaves behind when something in it fails, is given up, or is watched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const RigOptions kRich{
    .compute = DType::kBf16, .tied = true, .layers = 2, .accumulation = 2, .chunk_bytes = 1, .modes = Modes::kMixed};
// Everything that can be away is.
const RigOptions kAway{.compute = DType::kBf16,
                       .tied = true,
                       .layers = 2,
                       .accumulation = 2,
                       .order = Order::kLayer,
                       .chunk_bytes = 1,
                       .persist = Persist::kNone,
                       .modes = Modes::kMixed,
                       .places = Places::kCpu};

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
  for (const Task& task : counting.runner->last_schedule().tasks) {
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
  Rig watched(kRich);
  watched.train(0, Batch(kTrainShape, 2, kSeed));
  for (const Lane lane : {Lane::kH2d, Lane::kD2h}) {
    const auto& tasks = watched.runner->last_schedule().tasks;
    const auto first = std::find_if(tasks.begin(), tasks.end(), [&](const Task& task) { return task.lane == lane; });
    ASSERT_NE(first, tasks.end());
    for (const double delay : {0.0, 2e-3}) {
      RigOptions options = kRich;
      options.faults.lanes = {std::string(lane_name(lane))};
      options.faults.fail_copy = 1;
      options.faults.longest_delay_seconds = delay;
      Rig rig(options);
      try {
        rig.train(0, Batch(kTrainShape, 2, kSeed));
        FAIL() << lane_name(lane) << " did not fail";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), StartsWith(first->name + ": ")) << delay;
        EXPECT_THAT(error.what(), HasSubstr("injected fault: copy 1"));
      }
    }
  }
}

TEST(Fault, InAnAsynchronousCopyOfABlockNamesTheBlocksTask) {
  RigOptions options = kRich;
  options.faults.lanes = {"compute"};
  options.faults.fail_copy = 2;  // the embedding's output, which it does not wait for
  Rig rig(options);
  const auto before = all_state(rig);
  try {
    rig.train(0, Batch(kTrainShape, 2, kSeed));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), StartsWith("forward embedding micro-batch 0: "));
  }
  EXPECT_EQ(all_state(rig), before);
  expect_as_if_nothing_had_been(rig);
}

// Two steps with clipping, the second under the pending updates of the first. `spoil` makes the second go wrong; what
// is pending is then drained, or left to the second step's next try.
template <typename Spoil>
void expect_recovery(const RigOptions& options, const Spoil& spoil) {
  const Batch first(kTrainShape, options.accumulation, kSeed), second(kTrainShape, options.accumulation, kSeed + 1);
  const double max_norm = 0.05;
  const ModelSpec spec = make_spec(options.layers, options.tied);
  static std::vector<std::byte> after_one, after_two;
  if (after_one.empty()) {
    PlainLoop loop = plain_loop(spec, options);
    loop.step(plain_step(first, inputs_of(first, 0, max_norm)), AdamWOptions{});
    after_one = all_state(loop, spec, options.compute);
    loop.step(plain_step(second, inputs_of(second, 1, max_norm)), AdamWOptions{});
    after_two = all_state(loop, spec, options.compute);
  }
  for (const bool drained : {false, true}) {
    Rig rig(options);
    rig.runner->step(rig.train_request(0, first.micro_batches), inputs_of(first, 0, max_norm));
    ASSERT_TRUE(rig.runner->pending());
    const auto step = [&](const RunOptions& run) {
      return rig.runner->step(rig.train_request(1, second.micro_batches), inputs_of(second, 1, max_norm), run);
    };
    spoil(rig, step);
    EXPECT_EQ(rig.store->pending(), rig.runner->pending());
    if (drained) {
      rig.runner->drain();
      EXPECT_FALSE(rig.runner->pending());
      ASSERT_TRUE(all_state(rig) == after_one);
    }
    step({});
    ASSERT_TRUE(all_state(rig) == after_two);
  }
}

TEST(Pending, UpdatesSurviveAFaultAtAnyTask) {
  Rig counting(kAway);
  const Batch batch(kTrainShape, 2, kSeed);
  for (int step = 0; step < 2; ++step) {
    counting.runner->step(counting.train_request(step, 2), inputs_of(batch, step, 0.05));
  }
  const auto tasks = static_cast<Id>(counting.runner->last_schedule().tasks.size());
  ASSERT_GT(tasks, 50);
  for (Id failing = 0; failing < tasks; ++failing) {
    SCOPED_TRACE(failing);
    expect_recovery(kAway, [&](Rig&, const auto& step) {
      RunOptions run;
      run.before_task = [&](Id id, const Task&) {
        if (id == failing) fail(ExitCode::kData, "boom");
      };
      EXPECT_THROW(step(run), Error);
    });
    if (HasFatalFailure()) return;
  }
}

class FailedWork : public EventState {
 public:
  bool ready() const override { return false; }
  void wait() const override { fail(ExitCode::kData, "boom"); }
};

TEST(Pending, UpdatesSurviveATracedStepThatFailsBeforeItsFirstTask) {
  expect_recovery(kAway, [](Rig& rig, const auto& step) {
    rig.runner->executor().stream(Lane::kCompute).wait(Event(std::make_shared<FailedWork>()));
    RunOptions traced;
    traced.trace = true;
    EXPECT_THROW(step(traced), Error);
    EXPECT_TRUE(rig.runner->pending());
  });
}

TEST(Pending, UpdatesSurviveAStepAbandonedAtAnyComputeTask) {
  Rig counting(kAway);
  const Batch batch(kTrainShape, 2, kSeed);
  int asked = 0;
  for (int step = 0; step < 2; ++step) {
    RunOptions run;
    asked = 0;
    run.abandon = [&] { return ++asked < 0; };
    counting.runner->step(counting.train_request(step, 2), inputs_of(batch, step, 0.05), run);
  }
  ASSERT_GT(asked, 10);
  for (int at = 1; at <= asked; ++at) {
    SCOPED_TRACE(at);
    expect_recovery(kAway, [&](Rig&, const auto& step) {
      int now = 0;
      RunOptions run;
      run.abandon = [&] { return ++now == at; };
      EXPECT_TRUE(step(run).run.abandoned);
      EXPECT_EQ(now, at);  // not asked again
    });
    if (HasFatalFailure()) return;
  }
}

TEST(Pending, UpdatesSurviveAnyFailedCopy) {
  for (const char* lane : {"h2d", "d2h"}) {
    for (const double delay : {0.0, 3e-4}) {
      std::int64_t copies = 0, before = 0;
      {
        Rig counting(kAway);
        const Batch batch(kTrainShape, 2, kSeed);
        for (int step = 0; step < 2; ++step) {
          counting.runner->step(counting.train_request(step, 2), inputs_of(batch, step, 0.05));
          before = copies;
          for (const Task& task : counting.runner->last_schedule().tasks) {
            if (task.op == Op::kCopy && lane_name(task.lane) == lane) ++copies;
          }
        }
      }
      ASSERT_GT(copies, before);
      for (std::int64_t failing = before + 1; failing <= copies; ++failing) {
        SCOPED_TRACE(testing::Message() << lane << " copy " << failing << " delay " << delay);
        RigOptions options = kAway;
        options.faults.lanes = {lane};
        options.faults.fail_copy = failing;
        options.faults.longest_delay_seconds = delay;
        expect_recovery(options, [&](Rig&, const auto& step) { EXPECT_THROW(step(RunOptions{}), Error); });
        if (HasFatalFailure()) return;
      }
    }
  }
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
    const Schedule& schedule = rig.runner->last_schedule();
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
