#include "runtime/weight_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

TEST(WeightLoads, OfWhichOneIsMissingOrTooEarlyAreFound) {
  const Rig rig({.compute = DType::kBf16,
                 .tied = true,
                 .layers = 4,
                 .accumulation = 2,
                 .chunk_bytes = 1,
                 .persist = Persist::kHalf,
                 .places = Places::kCpu});
  StepShape step{Graph::kTrain, kTrainShape, 2, 0, true, 0, {}, {}};
  for (Id chunk = 0; chunk < static_cast<Id>(rig.chunks.size()); ++chunk) step.pending.push_back(chunk);
  const Schedule schedule = expand(rig.spec, rig.chunks, rig.shape, rig.profile, rig.plan, rig.bytes, step);
  const auto missing = [&](const Schedule& changed) {
    return missing_load(changed, step, rig.spec, rig.chunks, rig.plan);
  };
  EXPECT_EQ(missing(schedule), "");
  int loads = 0, updates = 0;
  for (std::size_t id = 0; id < schedule.tasks.size(); ++id) {
    const Task& task = schedule.tasks[id];
    Schedule changed = schedule;
    if (is_weight_load(task)) {
      ++loads;
      changed.tasks.erase(changed.tasks.begin() + static_cast<std::ptrdiff_t>(id));
      EXPECT_THAT(missing(changed), testing::HasSubstr("finds")) << task.name;
    } else if (task.op == Op::kUpdate) {
      ++updates;
      std::rotate(changed.tasks.begin() + static_cast<std::ptrdiff_t>(id),
                  changed.tasks.begin() + static_cast<std::ptrdiff_t>(id) + 1, changed.tasks.end());
      EXPECT_THAT(missing(changed), testing::HasSubstr("comes before the chunk's update")) << task.name;
    }
  }
  EXPECT_GT(loads, updates);  // streamed chunks come again for backward
  EXPECT_EQ(updates, static_cast<int>(rig.chunks.size()));
}

TEST(WeightLoads, ThatTheSlotsMakeUnnecessaryAreNotAskedFor) {
  const Rig rig({.chunk_bytes = 1, .persist = Persist::kNone, .places = Places::kCpu});
  StepShape step{Graph::kEvaluate, kEvalShape, 1, 0, true, 0, {}, {}};
  const Schedule cold = expand(rig.spec, rig.chunks, rig.shape, rig.profile, rig.plan, rig.bytes, step);
  step.slots = cold.slots_after;
  const Schedule warm = expand(rig.spec, rig.chunks, rig.shape, rig.profile, rig.plan, rig.bytes, step);
  EXPECT_EQ(missing_load(warm, step, rig.spec, rig.chunks, rig.plan), "");
  step.slots.clear();
  // Unless something of the first chunks is still there, the two are equal.
  const bool fewer = std::count_if(warm.tasks.begin(), warm.tasks.end(), is_weight_load) <
                     std::count_if(cold.tasks.begin(), cold.tasks.end(), is_weight_load);
  EXPECT_EQ(missing_load(warm, step, rig.spec, rig.chunks, rig.plan).empty(), !fewer);
}

}  // namespace
}  // namespace protrain::toy
