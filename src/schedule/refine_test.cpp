#include "schedule/refine.h"

#include <gtest/gtest.h>

#include "schedule/test_case.h"
#include "schedule/test_rates.h"

namespace protrain::test {
namespace {

// A machine on which kinds of tasks take other times than its rates say is found out from one step of it.
TEST(Refine, FindsTheRatesOfTheMachineThatMadeTheTimeline) {
  std::mt19937 random(20261129);
  std::cout << "seed 20261129\n";
  std::array<int, 2> alone_seen{}, with_result_seen{};  // by whether it occurred
  for (int round = 0; round < 20; ++round) {
    Plan plan;
    plan.chunk_bytes = 2000;
    RunShape shape;
    shape.compute = DType::kBf16;
    shape.accumulation = 1 + round % 3;
    shape.train_shapes = {{2, 8, 2, false}};
    const ModelSpec spec = make_model(4, false);
    const auto chunks = make_chunks(spec, plan.chunk_bytes, shape.compute);
    const auto body = static_cast<int>(std::ranges::count(chunks, BlockKind::kLayer, &Chunk::kind));
    plan.n_persist = round % (body + 1);
    plan.place.assign(chunks.size(), UpdatePlace::kCpu);
    plan.activation = interleave(spec, {.swap = round % 3,
                                        .recompute = round % 2 == 0   ? 0
                                                     : round % 4 == 1 ? 1
                                                                      : 4 - round % 3});
    const SlotNeed need = slot_need(spec, chunks, plan);
    plan.n_buffer = need.buffer;
    plan.gradient_slots = need.gradient;
    const Case one(spec, shape, plan);

    Rates believed = random_rates(one.profile, random, /*slows=*/false);
    for (Rates::Call& call : believed.calls) call.rested = call.steady;
    Rates true_rates = believed;
    for (Rates::Call& call : true_rates.calls) {
      call.rested = call.steady *= between(random, 0.5, 2);
      call.graph_alone *= between(random, 0.5, 2);
    }
    for (Rates::Linear* line : {&true_rates.h2d, &true_rates.d2h, &true_rates.cpu_update, &true_rates.round}) {
      const double factor = between(random, 0.5, 2);
      line->seconds *= factor;
      line->per_unit *= factor;
    }
    StepShape step = one.train_step();
    step.pending = one.host_chunks();
    const Schedule schedule = one.expand(step);
    const auto timeline = [&](const Rates& rates) {
      return simulate(schedule, task_times(schedule, one.spec, one.chunks, step, rates), rates);
    };
    const Timeline measured = timeline(true_rates);
    const Rates refined = refine(believed, one.spec, one.chunks, schedule, shape.train_shapes.front(), measured);
    EXPECT_NEAR(timeline(refined).seconds, measured.seconds, 1e-9 * measured.seconds) << "round " << round;
    EXPECT_NE(timeline(believed).seconds, measured.seconds);
    // A kept forward with its result and one without it are learnt apart, or not at all.
    for (std::size_t i = 0; i < believed.calls.size(); ++i) {
      if (believed.calls[i].key.pass != Pass::kForwardKeep) continue;
      const auto time = [&](const Rates& rates, bool alone) {
        return rates.calls[i].steady * (alone ? rates.calls[i].graph_alone : 1);
      };
      for (const bool alone : {false, true}) {
        const bool occurs = std::ranges::any_of(schedule.tasks, [&](const Task& task) {
          return task.op == Op::kRunBlock && task.name.starts_with("recompute") == alone &&
                 believed.calls[i].key == CallKey{spec.blocks[static_cast<std::size_t>(task.what.block)].trace,
                                                  task.what.pass, task.what.light, step.batch, true};
        });
        const double expected = time(occurs ? true_rates : believed, alone);
        EXPECT_NEAR(time(refined, alone), expected, 1e-9 * expected) << "alone " << alone << ", round " << round;
        ++(alone ? alone_seen : with_result_seen)[occurs];
      }
    }
    EXPECT_EQ(refined.gpu_update.per_unit, believed.gpu_update.per_unit);  // none occurred
  }
  for (const auto* seen : {&alone_seen, &with_result_seen}) {
    EXPECT_GT((*seen)[0], 0);
    EXPECT_GT((*seen)[1], 0);
  }
}

}  // namespace
}  // namespace protrain::test
