// The simulator and the executor walk the same graph: the same tasks, lane by lane in the same order.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/toy_rig.h"
#include "schedule/simulate.h"

namespace protrain {
namespace {

using LaneOrders = std::array<std::vector<Id>, kLanes>;

// By lane, what ran, by the time at which it began; lane order must be without overlap.
LaneOrders orders(const Timeline& timeline) {
  std::vector<Span> spans = timeline.spans;
  // Tasks of no time begin together: the one that ends first was first.
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::pair(a.begin_seconds, a.end_seconds) < std::pair(b.begin_seconds, b.end_seconds);
  });
  LaneOrders result;
  for (const Span& span : spans) result[static_cast<std::size_t>(span.lane)].push_back(span.task);
  return result;
}

// Whatever tasks cost, the order is the schedule's: here each takes a time of its own.
Timeline simulated(const Schedule& schedule) {
  std::vector<TaskTime> times;
  times.reserve(schedule.tasks.size());
  for (std::size_t id = 0; id < schedule.tasks.size(); ++id) times.emplace_back(1 + static_cast<double>(id * 7 % 5));
  return simulate(schedule, times, {});
}

TEST(SimulatedOrder, IsThatOfTheExecutorOnEveryLane) {
  for (const Order order : {Order::kMicroBatch, Order::kLayer}) {
    for (const bool clip : {true, false}) {
      toy::RigOptions options;
      options.compute = DType::kBf16;
      options.layers = 5;
      options.accumulation = 3;
      options.order = order;
      options.chunk_bytes = 1;
      options.persist = toy::Persist::kNone;
      options.modes = toy::Modes::kMixed;
      options.places = toy::Places::kMixed;
      SCOPED_TRACE(toy::describe(options));
      toy::Rig rig(options);
      const toy::Batch batch(toy::kTrainShape, options.accumulation, toy::kSeed);
      RunOptions traced;
      traced.trace = true;
      for (std::int64_t step = 0; step < 3; ++step) {
        const auto outputs = rig.runner->step(rig.train_request(step, batch.micro_batches),
                                              toy::inputs_of(batch, step, clip ? 0.05 : 0), traced);
        const Schedule& schedule = rig.runner->last_schedule();
        LaneOrders scheduled;
        for (std::size_t id = 0; id < schedule.tasks.size(); ++id) {
          scheduled[static_cast<std::size_t>(schedule.tasks[id].lane)].push_back(static_cast<Id>(id));
        }
        EXPECT_EQ(orders(outputs.run.timeline), scheduled);
        EXPECT_EQ(orders(simulated(schedule)), scheduled);
      }
    }
  }
}

// What is predicted is what the runner comes to run, down to names and edges.
TEST(SimulatedOrder, PredictedStepIsTheOneThatRuns) {
  for (const bool clip : {true, false}) {
    for (const std::int64_t accumulation : {1, 3}) {
      toy::RigOptions options;
      options.layers = 4;
      options.accumulation = accumulation;
      options.chunk_bytes = 1;
      options.persist = toy::Persist::kHalf;
      options.places = toy::Places::kMixed;
      options.modes = toy::Modes::kMixed;
      SCOPED_TRACE(toy::describe(options));
      toy::Rig rig(options);
      const toy::Batch batch(toy::kTrainShape, accumulation, toy::kSeed);
      constexpr std::int64_t kSteps = 3;  // an odd number: the last one has batch slot 0
      for (std::int64_t step = 0; step < kSteps; ++step) {
        rig.runner->step(rig.train_request(step, accumulation), toy::inputs_of(batch, step, clip ? 0.05 : 0));
      }
      Rates rates;
      for (const Profile::Call& call : rig.profile.calls) rates.calls.push_back({call.key, 1, 1});
      PredictOptions predict_options;
      predict_options.clip = clip;
      const Prediction prediction =
          predict(rig.spec, rig.chunks, rig.shape, rig.profile, rig.plan, rig.bytes, rates, predict_options);
      const Schedule& ran = rig.runner->last_schedule();
      ASSERT_EQ(prediction.schedule.tasks.size(), ran.tasks.size());
      for (std::size_t id = 0; id < ran.tasks.size(); ++id) {
        EXPECT_EQ(prediction.schedule.tasks[id].name, ran.tasks[id].name);
        EXPECT_EQ(prediction.schedule.tasks[id].lane, ran.tasks[id].lane);
        EXPECT_EQ(prediction.schedule.tasks[id].after, ran.tasks[id].after);
      }
    }
  }
}

}  // namespace
}  // namespace protrain
