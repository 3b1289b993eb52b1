#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "schedule/simulate.h"
#include "schedule/test_case.h"
#include "schedule/test_rates.h"

namespace protrain {
namespace {

using ::testing::HasSubstr;

// Three layers of 810 elements and more for padding, streamed with their updates on the host, recomputed, bf16.
test::Case streamed() {
  const ModelSpec spec = test::make_model(3, false);
  const RunShape shape = test::small_run(DType::kBf16, 4);
  Plan plan = resident_plan(spec, shape, 1, Activation::kRecompute);
  const auto chunks = make_chunks(spec, plan.chunk_bytes, shape.compute);
  plan.n_persist = 0;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (chunks[chunk].kind == BlockKind::kLayer) plan.place[chunk] = UpdatePlace::kCpu;
  }
  const SlotNeed need = slot_need(spec, chunks, plan);
  plan.n_buffer = need.buffer;
  plan.gradient_slots = need.gradient;
  return {spec, shape, plan};
}

constexpr double kGraphAlone = 0.75;

// Rates that tell from a task's time what was asked: calls by their number, all else by a power of ten per unit.
Rates telling(const Profile& profile) {
  Rates rates;
  for (const Profile::Call& call : profile.calls) {
    const auto number = static_cast<double>(rates.calls.size() + 1);
    rates.calls.push_back({call.key, 2 * number, number, kGraphAlone});
  }
  rates.h2d = {1, 1e3};
  rates.d2h = {2, 1e4};
  rates.cpu_update = {3, 1e5};
  rates.gpu_update = {4, 1e6};
  rates.norm = {5, 1e7};
  rates.round = {6, 1e8};
  rates.finish_norm = 7;
  return rates;
}

TEST(TaskSeconds, AreThoseOfTheTasksOwnRateAndSize) {
  const test::Case one = streamed();
  const Rates rates = telling(one.profile);
  StepShape step = one.train_step();
  step.pending = one.host_chunks();
  const Schedule schedule = one.expand(step);
  const auto seconds = task_times(schedule, one.spec, one.chunks, step, rates);
  ASSERT_EQ(seconds.size(), schedule.tasks.size());
  std::map<Op, int> seen;
  for (std::size_t id = 0; id < seconds.size(); ++id) {
    const Task& task = schedule.tasks[id];
    SCOPED_TRACE(task.name);
    ++seen[task.op];
    const auto elements = task.chunk < 0 ? 0.0 : static_cast<double>(one.chunks[task.chunk].elements);
    switch (task.op) {
      case Op::kRunBlock: break;  // below
      case Op::kCopy: {
        const auto bytes = static_cast<double>(task.access[0].range.bytes);
        if (task.chunk >= 0) {
          EXPECT_EQ(bytes, 2 * elements);
        }
        EXPECT_EQ(seconds[id], task.lane == Lane::kH2d ? 1 + 1e3 * bytes : 2 + 1e4 * bytes);
        break;
      }
      case Op::kUpdate:
        EXPECT_EQ(seconds[id],
                  one.plan.place[task.chunk] == UpdatePlace::kCpu ? 3 + 1e5 * elements : 4 + 1e6 * elements);
        break;
      case Op::kNorm: EXPECT_EQ(seconds[id], 5 + 1e7 * elements); break;
      case Op::kRound: EXPECT_EQ(seconds[id], 6 + 1e8 * elements); break;
      case Op::kFinishNorm: EXPECT_EQ(seconds[id], 7); break;
    }
  }
  EXPECT_EQ(seen.size(), kOps);
}

TEST(TaskSeconds, OfCallsFollowBlockPassModeAndShape) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int recomputed = 0, others = 0;
  for (int round = 0; round < 30; ++round) {
    const test::Case one = test::make_case(test::random_knobs(random));
    SCOPED_TRACE(one.text);
    const Rates rates = telling(one.profile);
    for (StepShape step : {one.train_step(), one.evaluation_step()}) {
      if (step.graph == Graph::kTrain) step.batch = one.shape.train_shapes[random() % 2];
      const Schedule schedule = one.expand(step);
      const std::vector<TaskTime> times = task_times(schedule, one.spec, one.chunks, step, rates);
      for (const double factor : {1, 2}) {  // rested, steady
        for (std::size_t id = 0; id < times.size(); ++id) {
          const double seconds = factor == 1 ? times[id].rested : times[id].steady;
          const Task& task = schedule.tasks[id];
          if (task.op != Op::kRunBlock) continue;
          const bool again = task.name.starts_with("recompute");  // wants no result
          const double part = again ? kGraphAlone * factor : factor;
          (again ? recomputed : others) += 1;
          const std::size_t number = static_cast<std::size_t>(std::lround(seconds / part)) - 1;
          ASSERT_LT(number, rates.calls.size());
          EXPECT_DOUBLE_EQ(seconds, static_cast<double>(number + 1) * part);
          const CallKey& key = rates.calls[number].key;
          EXPECT_EQ(key.trace, one.spec.blocks[task.what.block].trace);
          EXPECT_EQ(key.pass, task.what.pass);
          EXPECT_EQ(key.light, task.what.light);
          EXPECT_EQ(key.shape, step.batch);
          EXPECT_EQ(key.training, step.graph == Graph::kTrain);
        }
      }
    }
  }
  EXPECT_GT(recomputed, 0);
  EXPECT_GT(others, 0);
}

TEST(TaskSeconds, NameTheCallThatHasNone) {
  const test::Case one = streamed();
  Rates rates = telling(one.profile);
  rates.source = "some.json";
  std::erase_if(rates.calls, [](const Rates::Call& call) { return call.key.trace == "head"; });
  const StepShape step = one.train_step();
  try {
    task_times(one.expand(step), one.spec, one.chunks, step, rates);
    FAIL() << "no error";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("some.json: no time of \"head\", pass 2, 2 x 8 tokens"));
  }
}

}  // namespace
}  // namespace protrain
