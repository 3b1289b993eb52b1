#include "schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "schedule/simulation.h"

namespace protrain {
namespace {

using test::Case;
using test::Knobs;
using test::Simulation;

std::vector<std::string> names(const Schedule& schedule) {
  std::vector<std::string> names;
  names.reserve(schedule.tasks.size());
  for (const Task& task : schedule.tasks) names.push_back(task.name);
  return names;
}

Case resident(Id layers, bool tied, DType compute, std::int64_t accumulation, Activation mode) {
  const ModelSpec spec = test::make_model(layers, tied);
  const RunShape shape = test::small_run(compute, accumulation);
  return {spec, shape, resident_plan(spec, shape, kMiB, mode)};
}

// Every layer a chunk, all of them streamed through two slots, all updates on the host.
Case streamed(Id layers, Activation mode, Order order = Order::kMicroBatch, std::int64_t accumulation = 1) {
  const ModelSpec spec = test::make_model(layers, false);
  const RunShape shape = test::small_run(DType::kF32, accumulation);
  Plan plan = resident_plan(spec, shape, 5200, mode);
  plan.n_persist = 0;
  plan.n_buffer = 2;
  plan.gradient_slots = 2;
  plan.offload_distance = 1;
  plan.order = order;
  std::fill(plan.place.begin() + 1, plan.place.end() - 1, UpdatePlace::kCpu);
  return {spec, shape, plan};
}

TEST(Schedule, OfAStepWithRecomputeReadsLikeThis) {
  const Case one = resident(1, true, DType::kBf16, 2, Activation::kRecompute);
  EXPECT_THAT(
      names(one.expand(one.train_step())),
      ::testing::ElementsAre("upload batch",                                                        //
                             "forward embedding micro-batch 0", "forward layer 0 micro-batch 0",    //
                             "backward head micro-batch 0", "recompute layer 0 micro-batch 0",      //
                             "backward layer 0 micro-batch 0", "backward embedding micro-batch 0",  //
                             "forward embedding micro-batch 1", "forward layer 0 micro-batch 1",    //
                             "backward head micro-batch 1", "recompute layer 0 micro-batch 1",
                             "backward layer 0 micro-batch 1", "round chunk 2", "norm chunk 2",    //
                             "backward embedding micro-batch 1", "round chunk 1", "norm chunk 1",  //
                             "round chunk 0", "norm chunk 0",                                      //
                             "finish norm", "download results", "update chunk 0", "update chunk 1", "update chunk 2"));
}

TEST(Schedule, OfAStreamedStepWithPendingUpdatesReadsLikeThis) {
  const Case one = streamed(3, Activation::kKeep);
  StepShape step = one.train_step();
  step.pending = {1, 2, 3};
  step.slots = {3, 2};  // stale, both
  EXPECT_THAT(names(one.expand(step)),
              ::testing::ElementsAre(
                  "upload batch", "update chunk 1 of the step before", "load chunk 1",
                  "update chunk 2 of the step before", "load chunk 2", "forward embedding micro-batch 0",
                  "forward layer 0 micro-batch 0", "update chunk 3 of the step before", "load chunk 3",
                  "forward layer 1 micro-batch 0", "forward layer 2 micro-batch 0", "backward head micro-batch 0",
                  "norm chunk 4", "backward layer 2 micro-batch 0", "norm chunk 3", "gradient of chunk 3 to host",
                  "load chunk 1", "backward layer 1 micro-batch 0", "norm chunk 2", "gradient of chunk 2 to host",
                  "backward layer 0 micro-batch 0", "norm chunk 1", "gradient of chunk 1 to host",
                  "backward embedding micro-batch 0", "norm chunk 0", "finish norm", "download results",
                  "update chunk 0", "update chunk 4"));
}

TEST(Schedule, OfAStreamedStepWithoutClippingUpdatesDuringBackward) {
  const Case one = streamed(1, Activation::kKeep);
  StepShape step = one.train_step();
  step.clip = false;
  const Schedule schedule = one.expand(step);
  EXPECT_THAT(
      names(schedule),
      ::testing::ElementsAre("upload batch", "load chunk 1", "forward embedding micro-batch 0",
                             "forward layer 0 micro-batch 0", "backward head micro-batch 0", "finish losses",
                             "download losses", "norm chunk 2", "backward layer 0 micro-batch 0", "norm chunk 1",
                             "gradient of chunk 1 to host", "update chunk 1", "backward embedding micro-batch 0",
                             "norm chunk 0", "finish norm", "download results", "update chunk 0", "update chunk 2"));
  EXPECT_THAT(schedule.slots_after, ::testing::ElementsAre(-1));
}

TEST(Schedule, OfASwapLendsBytesWhileTheCopyMayLagAndBringsThemBackAhead) {
  const Case one = streamed(4, Activation::kSwap);
  const auto all = names(one.expand(one.train_step()));
  const auto at = [&](std::string_view name) { return std::find(all.begin(), all.end(), name) - all.begin(); };
  for (const auto* what : {"saved set of layer 0 micro-batch 0 to host", "input of layer 0 micro-batch 0 to host"}) {
    EXPECT_GT(at(what), at("forward layer 1 micro-batch 0"));
    EXPECT_LT(at(what), at("forward layer 2 micro-batch 0"));
  }
  // Before the visit that comes one ahead of its backward.
  EXPECT_LT(at("saved set of layer 0 micro-batch 0 to device"), at("backward layer 1 micro-batch 0"));
  EXPECT_GT(at("saved set of layer 0 micro-batch 0 to device"), at("backward layer 2 micro-batch 0"));
}

TEST(Schedule, InLayerOrderMeetsEachStreamedChunkTwiceAStep) {
  const Case one = streamed(4, Activation::kRecompute, Order::kLayer, 4);
  StepShape step = one.train_step();
  int loads = 0;
  for (const Task& task : one.expand(step).tasks) loads += task.name.starts_with("load") ? 1 : 0;
  EXPECT_EQ(loads, 4 + 2);  // two are still there when backward begins
}

TEST(Schedule, OfADrainUpdatesAndUploadsHomesAndNothingElse) {
  Case one = streamed(2, Activation::kKeep);
  StepShape step;
  step.graph = Graph::kDrain;
  step.pending = {2};
  step.slots = {1, 2};
  const Schedule schedule = one.expand(step);
  EXPECT_THAT(names(schedule), ::testing::ElementsAre("update chunk 2 of the step before"));
  EXPECT_THAT(schedule.slots_after, ::testing::ElementsAre(1, -1));

  one.plan.n_persist = 1;
  const Case other(one.spec, one.shape, one.plan);
  step.pending = {1};
  step.slots = {2};
  EXPECT_THAT(names(other.expand(step)), ::testing::ElementsAre("update chunk 1 of the step before", "load chunk 1"));
}

TEST(Schedule, RefusesAStepThatItsLayoutWasNotMadeFor) {
  const Case one = resident(1, true, DType::kF32, 2, Activation::kKeep);
  StepShape step = one.train_step();
  step.micro_batches = 3;
  EXPECT_THROW(one.expand(step), InternalError);
  step.micro_batches = 2;
  step.batch.row_tokens = 15;
  EXPECT_THROW(one.expand(step), InternalError);
  step = one.train_step();
  step.pending = {0};  // resident
  EXPECT_THROW(one.expand(step), InternalError);
}

// All graphs that a run with this plan may meet, one after the other: what the slots hold goes with them.
std::vector<StepShape> run_of(const Case& one, std::mt19937& random) {
  std::vector<StepShape> steps;
  std::vector<Id> contents;
  const auto add = [&](StepShape step) {
    step.slots = contents;
    contents = one.expand(step).slots_after;
    steps.push_back(step);
  };
  StepShape step = one.train_step();
  add(step);
  step.batch_slot = 1;
  step.pending = one.host_chunks();
  add(step);
  step.batch = one.shape.train_shapes[1];
  step.micro_batches = 1;
  step.pending_slot = 1;
  std::erase_if(step.pending, [&](Id) { return random() % 2 == 0; });  // a step was abandoned half way
  add(step);
  StepShape drain;
  drain.graph = Graph::kDrain;
  drain.pending = one.host_chunks();
  add(drain);
  StepShape evaluation = one.evaluation_step();
  add(evaluation);
  evaluation.micro_batches = 1;
  add(evaluation);
  step = one.train_step();
  step.clip = false;
  add(step);
  add(step);
  step.pending = one.host_chunks();
  step.micro_batches = std::max<std::int64_t>(1, one.shape.accumulation - 1);
  add(step);
  return steps;
}

// Returns the peak in units of the bound.
double check_plan(const Case& one, std::mt19937& random) {
  SCOPED_TRACE("knobs " + one.text);
  Bytes high = 0, most = 0;
  for (const StepShape& step : run_of(one, random)) {
    SCOPED_TRACE(fmt::format("graph {}, {} micro-batches, clip {}, {} pending", static_cast<int>(step.graph),
                             step.micro_batches, step.clip, step.pending.size()));
    Schedule schedule = one.expand(step);
    EXPECT_EQ(race(schedule), "");
    Simulation simulation(one, step);
    simulation.run(schedule);
    if (::testing::Test::HasFailure()) return 0;
    high = std::max(high, simulation.high_water());
    most = std::max(most, simulation.most_live());

    for (int sample = 0; sample < 10 && !schedule.tasks.empty(); ++sample) {
      Task& task = schedule.tasks[random() % schedule.tasks.size()];
      if (task.after.empty()) continue;
      const auto after = task.after;
      const Id edge = after[random() % after.size()];
      std::erase(task.after, edge);
      EXPECT_NE(race(schedule), "") << task.name << " without its edge from " << schedule.tasks[edge].name;
      task.after = after;
    }
  }
  EXPECT_EQ(high, one.bytes.bytes(Tier::kDevice));
  EXPECT_EQ(most, one.bytes.live_bound);
  return static_cast<double>(high) / static_cast<double>(most);
}

TEST(Schedule, HoldsInEveryPairOfKnobs) {
  std::mt19937 random(5);
  const auto cover = test::pairwise_cover();
  for (const Knobs& knobs : cover) {
    EXPECT_LE(check_plan(test::make_case(knobs), random), 1.03);
    if (HasFailure()) return;
  }
  fmt::print("{} plans cover all pairs\n", cover.size());
}

TEST(Schedule, HoldsInRandomPlans) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr int kPlans = 60;
  double sum = 0;
  for (int round = 0; round < kPlans; ++round) {
    const double peak = check_plan(test::make_case(test::random_knobs(random)), random);
    // A saved set is a tenth of all bytes here: one in a thousand draws has no packing that is nearer.
    EXPECT_LE(peak, 1.06);
    sum += peak;
    if (HasFailure()) return;
  }
  EXPECT_LE(sum, 1.01 * kPlans);
}

}  // namespace
}  // namespace protrain
