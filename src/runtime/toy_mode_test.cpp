// A new activation mode takes one kind of task and one row of the table: this file is all there is of it.
//
// "keep_scrambled" is keep, but that the saved set's bytes are turned into others after the forward and back before the
// backward. "swap_scrambled" uses the same kind of task on other lanes, around the set's way to the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "plan/plan_json.h"
#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Scrambled {
  Op op = register_op("scramble");
  Activation keep = register_activation({.name = "keep_scrambled",
                                         .after_forward = ActivationTask{op, Lane::kCompute},
                                         .before_backward = ActivationTask{op, Lane::kCompute}});
  Activation swap = register_activation({.name = "swap_scrambled",
                                         .light = true,
                                         .offload_saved = true,
                                         .offload_input = true,
                                         .after_forward = ActivationTask{op, Lane::kD2h},
                                         .before_backward = ActivationTask{op, Lane::kGpuUpdate}});
};
const Scrambled& scrambled() {
  static const Scrambled modes;
  return modes;
}

// Its own inverse.
class Scramble final : public TaskRunner {
 public:
  explicit Scramble(const ChunkStore& store, bool undoes = true) : store_(store), undoes_(undoes) {}
  void run(const Task& task, Stream& stream) override {
    if (!undoes_ && task.what.pass == Pass::kBackward) return;
    const Range& saved = task.access.at(0).range;
    std::byte* const bytes = store_.at(saved);
    stream.call([&] {
      for (Bytes i = 0; i < saved.bytes; ++i) bytes[i] ^= static_cast<std::byte>(165 + 7 * i);
    });
    ++runs;
  }
  std::atomic<std::int64_t> runs = 0;

 private:
  const ChunkStore& store_;
  const bool undoes_;
};

// `modes` by turns, one a block.
Plan plan_with(const RigOptions& options, const std::vector<Activation>& modes) {
  Plan plan = make_plan(make_spec(options.layers, options.tied), options);
  for (std::size_t block = 0; block < plan.activation.size(); ++block) {
    plan.activation[block] = modes[block % modes.size()];
  }
  return plan;
}

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<std::byte> state;
  bool operator==(const Outcome&) const = default;
};

constexpr std::int64_t kSteps = 3;

Batch batch_of(const RigOptions& options, std::int64_t step) {
  return {kTrainShape, options.accumulation, kSeed + static_cast<unsigned>(step)};
}

template <typename Train>
Outcome outcome_of(const RigOptions& options, const Train& train) {
  Outcome outcome;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = batch_of(options, step);
    const StepControl control = train(step, batch);
    outcome.losses.push_back(control.loss_sum);
    outcome.norms.push_back(control.gradient_norm);
  }
  return outcome;
}

Outcome run(Rig& rig) {
  Outcome outcome = outcome_of(rig.options, [&](std::int64_t step, const Batch& batch) {
    const StepControl control = rig.train(step, batch).control;
    EXPECT_EQ(race(rig.runner->last_schedule()), "");
    return control;
  });
  outcome.state = all_state(rig);
  return outcome;
}

// Of any plan, by the plain loop.
Outcome expected(const RigOptions& options) {
  const ModelSpec spec = make_spec(options.layers, options.tied);
  PlainLoop loop = plain_loop(spec, options);
  Outcome outcome = outcome_of(options, [&](std::int64_t step, const Batch& batch) {
    return loop.step(plain_step(batch, inputs_of(batch, step)), AdamWOptions{});
  });
  outcome.state = all_state(loop, spec, options.compute);
  return outcome;
}

std::vector<RigOptions> runs() {
  std::vector<RigOptions> all;
  for (const std::int64_t accumulation : {1, 4}) {
    for (const Order order : {Order::kMicroBatch, Order::kLayer}) {
      for (const Persist persist : {Persist::kAll, Persist::kNone}) {
        const bool all_there = persist == Persist::kAll;
        all.push_back({.layers = 5,
                       .accumulation = accumulation,
                       .order = order,
                       .chunk_bytes = 1,
                       .persist = persist,
                       .places = all_there ? Places::kResident : Places::kCpu,
                       .faults = {.seed = kSeed, .longest_delay_seconds = all_there ? 0 : 1e-4}});
      }
    }
  }
  return all;
}

std::vector<std::vector<Activation>> mixes() {
  const auto& [op, keep, swap] = scrambled();
  return {{keep},
          {swap},
          {Activation::kSwap, keep, Activation::kRecompute, swap},
          {swap, Activation::kKeep, keep, Activation::kKeepLight, Activation::kRecomputeHost}};
}

TEST(ToyMode, ChangesNoBitBesideAnyOtherAndKeepsToItsLayout) {
  const Scrambled& modes = scrambled();
  for (const RigOptions& options : runs()) {
    const Outcome wanted = expected(options);
    for (const auto& mix : mixes()) {
      SCOPED_TRACE(describe(options));
      Rig rig(options, plan_with(options, mix));
      Scramble scramble(*rig.store);
      rig.runner->set_runner(modes.op, scramble);
      ASSERT_TRUE(run(rig) == wanted);
      for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
        EXPECT_EQ(rig.bytes.bytes(tier), rig.high_water(tier)) << "tier " << static_cast<int>(tier);
      }
      std::int64_t layers = 0;
      for (Id block = 1; block <= options.layers; ++block) {
        const Activation mode = rig.plan.activation[block];
        layers += mode == modes.keep || mode == modes.swap ? 1 : 0;
      }
      EXPECT_GT(layers, 0);
      EXPECT_EQ(scramble.runs, 2 * layers * options.accumulation * kSteps);
    }
  }
}

TEST(ToyMode, ThatDoesNotUndoItsWorkChangesBits) {
  const RigOptions options{.layers = 3, .accumulation = 2};
  const Outcome wanted = expected(options);
  for (const Activation mode : {scrambled().keep, scrambled().swap}) {
    Rig rig(options, plan_with(options, {mode}));
    Scramble scramble(*rig.store, false);
    rig.runner->set_runner(scrambled().op, scramble);
    EXPECT_FALSE(run(rig).state == wanted.state);
  }
}

TEST(ToyMode, NeedsItsRunner) {
  const RigOptions options{};
  Rig rig(options, plan_with(options, {scrambled().keep}));
  try {
    rig.train(0, batch_of(options, 0));
    FAIL() << "ran";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nothing runs \"scramble\""));
  }
}

TEST(ToyMode, ItsTasksAreInTheGraphsOrderByEdgesThatRaceMisses) {
  const RigOptions options{.layers = 3, .accumulation = 4, .order = Order::kLayer};
  Rig rig(options, plan_with(options, {scrambled().swap, scrambled().keep}));
  Scramble scramble(*rig.store);
  rig.runner->set_runner(scrambled().op, scramble);
  rig.train(0, batch_of(options, 0));
  const Schedule& schedule = rig.runner->last_schedule();
  int dropped = 0;
  for (std::size_t to = 0; to < schedule.tasks.size(); ++to) {
    for (const Id from : schedule.tasks[to].after) {
      if (schedule.tasks[to].op != scrambled().op && schedule.tasks[from].op != scrambled().op) continue;
      Schedule without = schedule;
      std::erase(without.tasks[to].after, from);
      EXPECT_NE(race(without), "") << schedule.tasks[from].name << " -> " << schedule.tasks[to].name;
      ++dropped;
    }
  }
  EXPECT_GT(dropped, 10);
}

TEST(ToyMode, IsNamedInPlanFiles) {
  const ModelSpec spec = make_spec(3, false);
  const Plan plan = parse_plan(R"({"activation": "keep_scrambled"})", "plan.json", spec, DType::kF32);
  EXPECT_THAT(plan.activation, Each(scrambled().keep));
  const std::string written = plan_json(plan, {});
  EXPECT_THAT(written, HasSubstr("\"keep_scrambled\""));
  EXPECT_EQ(parse_plan(written, "plan.json", spec, DType::kF32).activation, plan.activation);
  try {
    parse_plan(R"({"activation": "keep_scrambed"})", "plan.json", spec, DType::kF32);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"keep_scrambled\"?"));
  }
}

TEST(ToyMode, TakesNoNameTwiceAndNoRowThatCannotBe) {
  const Op op = scrambled().op;
  EXPECT_THROW(register_op("scramble"), InternalError);
  EXPECT_THROW(register_op("copy"), InternalError);
  EXPECT_THROW(register_activation({.name = "swap"}), InternalError);
  EXPECT_THROW(register_activation({.name = "again",
                                    .recompute = true,
                                    .after_forward = ActivationTask{op, Lane::kCompute},
                                    .before_backward = ActivationTask{op, Lane::kCompute}}),
               InternalError);
  EXPECT_THROW(traits(static_cast<Activation>(activation_count())), InternalError);
}

}  // namespace
}  // namespace protrain::toy
