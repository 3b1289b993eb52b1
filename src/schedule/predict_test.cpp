#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <random>

#include "schedule/simulate.h"
#include "schedule/test_case.h"
#include "schedule/test_rates.h"

namespace protrain {
namespace {

using test::Case;
using test::Knobs;

constexpr auto kComputeLane = static_cast<std::size_t>(Lane::kCompute);

Prediction predict(const Case& one, const Rates& rates, const PredictOptions& options = {}) {
  return protrain::predict(one.spec, one.chunks, one.shape, one.profile, one.plan, one.bytes, rates, options);
}

Case with_accumulation(const Case& one, std::int64_t accumulation) {
  RunShape shape = one.shape;
  shape.accumulation = accumulation;
  Case other(one.spec, shape, one.plan);
  other.text = one.text;
  return other;
}

double off_by(double value, double from) { return std::abs(value / from - 1); }

// Calls `body` with random plans and rates.
template <typename Body>
void on_random_plans(int rounds, Body body) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const Case one = test::make_case(test::random_knobs(random));
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round << " knobs " << one.text);
    body(one, test::random_rates(one.profile, random, round % 2 == 0), random);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Predict, SimulatesTheSecondOfTwoSteps) {
  on_random_plans(60, [](const Case& one, const Rates& rates, std::mt19937&) {
    for (const bool clip : {true, false}) {
      StepShape step = one.train_step();
      step.clip = clip;
      const Schedule first = one.expand(step);
      step.slots = first.slots_after;
      if (clip) step.pending = one.host_chunks();
      step.pending_slot = step.pending.empty() ? 0 : 1;
      const Schedule second = one.expand(step);
      const Prediction prediction = predict(one, rates, {.clip = clip});
      ASSERT_EQ(prediction.schedule.tasks.size(), second.tasks.size());
      for (std::size_t id = 0; id < second.tasks.size(); ++id) {
        ASSERT_EQ(prediction.schedule.tasks[id].name, second.tasks[id].name);
        ASSERT_EQ(prediction.schedule.tasks[id].after, second.tasks[id].after);
      }
      EXPECT_EQ(prediction.schedule.slots_after, first.slots_after);
    }
  });
}

TEST(Predict, IsTheSimulationOfItsScheduleAtItsOwnLoad) {
  on_random_plans(60, [](const Case& one, const Rates& rates, std::mt19937&) {
    const Prediction prediction = predict(one, rates);
    ASSERT_EQ(prediction.timeline.spans.size(), prediction.schedule.tasks.size());
    EXPECT_DOUBLE_EQ(prediction.step_seconds, prediction.timeline.seconds + rates.between_steps);
    EXPECT_DOUBLE_EQ(prediction.compute_waits, prediction.timeline.seconds - prediction.busy[kComputeLane]);
    std::array<double, kLanes> busy{};
    for (const Span& span : prediction.timeline.spans) {
      busy[static_cast<std::size_t>(span.lane)] += span.end_seconds - span.begin_seconds;
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      EXPECT_DOUBLE_EQ(prediction.busy[lane], busy[lane]);
      EXPECT_GE(prediction.step_seconds, prediction.busy[lane]);
    }
    // Between the times of a device that always rests and of one that never does.
    const StepShape step = one.train_step();
    double sums[2];
    const std::vector<TaskTime> times = task_times(prediction.schedule, one.spec, one.chunks, step, rates);
    for (const int load : {0, 1}) {
      std::vector<TaskTime> alone;
      alone.reserve(times.size());
      for (const TaskTime& time : times) alone.emplace_back(load == 0 ? time.rested : time.steady);
      sums[load] = simulate(prediction.schedule, alone, rates).seconds;
    }
    EXPECT_LE(sums[0], prediction.timeline.seconds * 1.02);  // a fluid model is not quite monotonic
    EXPECT_GE(sums[1], prediction.timeline.seconds * 0.98);
  });
}

// All lanes but compute, and what is not of a lane, cost nothing.
Rates compute_alone(const Profile& profile) {
  Rates rates;
  for (const Profile::Call& call : profile.calls) rates.calls.push_back({call.key, 3e-3, 2e-3});
  return rates;
}

TEST(Predict, TakesSteadyTimesWhereComputeNeverRestsAndRestedOnesWhereItWaits) {
  Knobs knobs;  // streamed layers, no recompute
  knobs.value[Knobs::kPersist] = 0;
  knobs.value[Knobs::kPlaces] = 1;
  const Case one = test::make_case(knobs);
  Rates rates = compute_alone(one.profile);
  const double calls = 2 * static_cast<double>(one.spec.blocks.size()) - 1;
  const Prediction busy = predict(one, rates);
  EXPECT_NEAR(busy.step_seconds, calls * 3e-3, 1e-12);
  EXPECT_NEAR(busy.compute_waits, 0, 1e-12);
  rates.h2d.seconds = 1;
  const Prediction waits = predict(one, rates);
  EXPECT_NEAR(waits.busy[kComputeLane], calls * 2e-3, 1e-12);
  // Half way between: steps that are short beside the load's memory, with a pause that makes the first round's load
  // 3/4.
  rates.h2d.seconds = 0;
  for (Rates::Call& call : rates.calls) call.steady = 3e-5, call.rested = 2e-5;
  rates.between_steps = calls * 1e-5;
  EXPECT_NEAR(predict(one, rates).busy[kComputeLane], calls * 2.5e-5, calls * 1e-7);
  // What was before a long step is forgotten.
  for (Rates::Call& call : rates.calls) call.steady = 3, call.rested = 2;
  rates.between_steps = calls;
  EXPECT_NEAR(predict(one, rates).busy[kComputeLane], calls * 3, 1e-9);
}

TEST(Predict, TakesTheLargestShapeUnlessToldOtherwise) {
  Case one = test::make_case(Knobs{});
  Rates rates = compute_alone(one.profile);
  for (Rates::Call& call : rates.calls) {
    call.steady = call.rested = 1e-3 * static_cast<double>(call.key.shape.tokens());
  }
  const BatchShape large{2, 8, 2, false};
  const BatchShape small{3, 4, 3, false};
  ASSERT_EQ(one.shape.train_shapes, (std::vector<BatchShape>{large, small}));
  const double calls = 2 * static_cast<double>(one.spec.blocks.size()) - 1;
  EXPECT_NEAR(predict(one, rates).step_seconds, 16e-3 * calls, 1e-12);
  EXPECT_NEAR(predict(one, rates, {.batch = small}).step_seconds, 12e-3 * calls, 1e-12);
  std::reverse(one.shape.train_shapes.begin(), one.shape.train_shapes.end());
  EXPECT_NEAR(predict(one, rates).step_seconds, 16e-3 * calls, 1e-12);
}

TEST(Predict, FoldsNothingOfUpToThreeMicroBatches) {
  on_random_plans(20, [](const Case& drawn, const Rates& rates, std::mt19937& random) {
    const Case one = with_accumulation(drawn, 1 + static_cast<std::int64_t>(random() % 3));
    const Prediction whole = predict(one, rates);
    const Prediction folded = predict(one, rates, {.fold = true});
    EXPECT_EQ(folded.step_seconds, whole.step_seconds);
    EXPECT_EQ(folded.busy, whole.busy);
    EXPECT_EQ(folded.schedule.tasks.size(), whole.schedule.tasks.size());
  });
}

// Micro-batches as long as a real model's, beside which the memory of the load is short: folding looks at no longer
// one.
Rates slow(Rates rates) {
  constexpr double kSlower = 20;
  for (Rates::Call& call : rates.calls) {
    call.steady *= kSlower;
    call.rested *= kSlower;
  }
  for (Rates::Linear* line :
       {&rates.h2d, &rates.d2h, &rates.cpu_update, &rates.gpu_update, &rates.norm, &rates.round}) {
    line->seconds *= kSlower;
    line->per_unit *= kSlower;
  }
  return rates;
}

TEST(Predict, FoldedIsCloseToTheWholeWalk) {
  struct Errors {
    double sum = 0, most = 0;
    int count = 0;
  };
  std::array<Errors, 2> errors;  // by Order
  on_random_plans(100, [&](const Case& drawn, const Rates& drawn_rates, std::mt19937& random) {
    if (drawn.shape.accumulation == 1) return;
    const Rates rates = slow(drawn_rates);
    const Case one = with_accumulation(drawn, 4 + static_cast<std::int64_t>(random() % 9));
    SCOPED_TRACE(testing::Message() << "accumulation " << one.shape.accumulation);
    for (const bool clip : {true, false}) {
      const Prediction whole = predict(one, rates, {.clip = clip});
      const Prediction folded = predict(one, rates, {.clip = clip, .fold = true});
      const double error = off_by(folded.step_seconds, whole.step_seconds);
      Errors& of_order = errors[static_cast<std::size_t>(one.plan.order)];
      of_order.sum += error;
      of_order.most = std::max(of_order.most, error);
      ++of_order.count;
      EXPECT_LT(error, 0.06);
      EXPECT_NEAR(folded.compute_waits, folded.step_seconds - rates.between_steps - folded.busy[kComputeLane], 1e-12);
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        EXPECT_GE(folded.step_seconds, folded.busy[lane]);
        EXPECT_NEAR(folded.busy[lane], whole.busy[lane], 0.06 * whole.step_seconds) << lane;
      }
    }
  });
  for (const Errors& of_order : errors) {
    fmt::print("folded: {} steps, {:.3f} % off on average, {:.3f} % at most\n", of_order.count,
               100 * of_order.sum / std::max(1, of_order.count), 100 * of_order.most);
    EXPECT_LE(of_order.sum, 0.005 * of_order.count);
  }
}

TEST(Predict, FoldsStepsOfManyMicroBatches) {
  on_random_plans(20, [](const Case& drawn, const Rates& rates, std::mt19937&) {
    const Case one = with_accumulation(drawn, 8);
    const auto& modes = one.plan.activation;
    const bool visits_host = std::any_of(modes.begin() + 1, modes.end() - 1, [](Activation mode) {
      return traits(mode).offload_saved || traits(mode).offload_input;
    });
    const std::int64_t walked = one.plan.order == Order::kLayer && visits_host ? 8 : 3;
    std::int64_t calls = 0;  // of the head, one a micro-batch
    for (const Task& task : predict(one, rates, {.fold = true}).schedule.tasks) {
      calls += task.op == Op::kRunBlock && task.what.block + 1 == static_cast<Id>(one.spec.blocks.size()) ? 1 : 0;
    }
    EXPECT_EQ(calls, walked);
  });
}

// Of a model with many layers, half of them streamed, all modes.
TEST(Predict, IsQuick) {
  const ModelSpec spec = test::make_model(80, false);
  for (const std::int64_t accumulation : {1, 8}) {
    for (const Order order : {Order::kMicroBatch, Order::kLayer}) {
      const RunShape shape = test::small_run(DType::kBf16, accumulation);
      Plan plan = resident_plan(spec, shape, 1700);
      const auto chunks = make_chunks(spec, plan.chunk_bytes, shape.compute);
      plan.order = order;
      plan.n_persist = 40;
      int number = 0;
      for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
        if (chunks[chunk].kind == BlockKind::kLayer && number++ >= plan.n_persist)
          plan.place[chunk] = UpdatePlace::kCpu;
      }
      const SlotNeed need = slot_need(spec, chunks, plan);
      plan.n_buffer = need.buffer + 2;
      plan.gradient_slots = need.gradient + 1;
      plan.activation = interleave(spec, {20, 10, 20, 10});
      const Case one(spec, shape, plan);
      std::mt19937 random(1);
      const Rates rates = test::random_rates(one.profile, random, true);
      const auto seconds_of = [](auto body) {
        const std::clock_t begin = std::clock();
        body();
        return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      };
      Prediction prediction;
      const double all = seconds_of([&] { prediction = predict(one, rates, {.fold = true}); });
      const double whole = seconds_of([&] { predict(one, rates); });
      const auto times = task_times(prediction.schedule, spec, chunks, one.train_step(), rates);
      const double simulation = seconds_of([&] { simulate(prediction.schedule, times, rates); });
      fmt::print("accumulation {}, order {}: {} tasks, folded in {:.2f} ms (whole: {:.2f}), simulated in {:.3f} ms\n",
                 accumulation, static_cast<int>(order), times.size(), 1e3 * all, 1e3 * whole, 1e3 * simulation);
      EXPECT_LT(all, 2);
      EXPECT_LT(simulation, 0.1);
    }
  }
}

}  // namespace
}  // namespace protrain
