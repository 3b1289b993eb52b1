#include "runtime/step_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

const RigOptions kStreamed{.compute = DType::kBf16,
                           .tied = true,
                           .accumulation = 2,
                           .chunk_bytes = 1,
                           .persist = Persist::kNone,
                           .modes = Modes::kMixed,
                           .places = Places::kCpu};

void expect_equal(const StepControl& found, const StepControl& expected) {
  EXPECT_EQ(found.gradient_norm, expected.gradient_norm);
  EXPECT_EQ(found.loss_sum, expected.loss_sum);
  EXPECT_EQ(found.clip_scale, expected.clip_scale);
  EXPECT_EQ(found.skip, expected.skip);
}

// Steps of a full, a shorter and again a full set of micro-batches; every result and every state bit for bit.
void expect_equals_plain_loop(const RigOptions& options) {
  SCOPED_TRACE(describe(options));
  Rig rig(options);
  PlainLoop loop = plain_loop(rig.spec, options);
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch(kTrainShape, step == 1 ? (options.accumulation + 1) / 2 : options.accumulation,
                      kSeed + static_cast<unsigned>(step));
    const StepControl expected = loop.step(plain_step(batch, inputs_of(batch, step)), AdamWOptions{});
    ASSERT_EQ(expected.skip, 0);
    ASSERT_GT(expected.gradient_norm, 0.01);
    expect_equal(rig.train(step, batch).control, expected);
    ASSERT_EQ(all_state(rig), all_state(loop, rig.spec, options.compute)) << "step " << step;
  }
}

TEST(Step, EqualsAPlainLoopForModelsOfNoAndOneLayer) {
  for (const Id layers : {0, 1}) {
    for (const bool tied : {false, true}) {
      for (const Places places : {Places::kResident, Places::kCpu}) {
        expect_equals_plain_loop({.compute = DType::kBf16,
                                  .tied = tied,
                                  .layers = layers,
                                  .accumulation = 2,
                                  .persist = places == Places::kCpu ? Persist::kNone : Persist::kAll,
                                  .modes = Modes::kRecompute,
                                  .places = places});
      }
    }
  }
}

TEST(Step, EqualsAPlainLoopWhateverLaneIsLate) {
  for (const char* lane : {"", "compute", "h2d", "d2h", "gpu_update", "cpu_update"}) {
    for (const std::uint64_t seed : {1, 2}) {
      SCOPED_TRACE(testing::Message() << "late lane " << lane << " seed " << seed);
      RigOptions options = kStreamed;
      options.faults.seed = seed;
      options.faults.longest_delay_seconds = 3e-4;
      if (*lane != '\0') options.faults.lanes = {lane};
      expect_equals_plain_loop(options);
    }
  }
}

TEST(Step, TellsEveryCallTheSameScaleAndKeyAndItsOwnMicroBatch) {
  Rig rig({.tied = true, .layers = 2, .accumulation = 3, .modes = Modes::kRecompute});
  const Batch batch(kTrainShape, 3, kSeed);
  std::set<const std::byte*> device, host;
  rig.before_call = [&](const BlockCall& call) {
    EXPECT_EQ(call.context->dropout_key, inputs_of(batch, 0).dropout_key);
    EXPECT_EQ(call.context->loss_scale, 1.0 / static_cast<double>(batch.supervised));
    EXPECT_TRUE(call.context->training);
    EXPECT_EQ(call.context->shape, kTrainShape);
    const Bytes offset = call.what.micro_batch * batch_layout(kTrainShape).bytes;
    EXPECT_EQ(std::memcmp(call.context->host_batch, batch.bytes.data() + offset,
                          static_cast<std::size_t>(batch_layout(kTrainShape).bytes)),
              0);
    device.insert(call.context->batch);
    host.insert(call.context->host_batch);
  };
  rig.train(0, batch);
  EXPECT_EQ(device.size(), 3u);
  EXPECT_EQ(host.size(), 3u);
}

TEST(Step, RunsEachBlockAsItsModeSays) {
  using ::testing::ElementsAre;
  for (const Modes modes : {Modes::kKeep, Modes::kKeepLight, Modes::kSwap, Modes::kRecompute, Modes::kRecomputeHost}) {
    SCOPED_TRACE(static_cast<int>(modes));
    Rig rig({.layers = 1, .modes = modes});
    std::vector<Pass> passes;
    std::vector<bool> has_output, has_saved;
    bool light = false;
    rig.before_call = [&](const BlockCall& call) {
      if (call.what.block != 1) return;
      passes.push_back(call.what.pass);
      has_output.push_back(call.output != nullptr);
      has_saved.push_back(call.saved != nullptr);
      light = light || call.what.light;
      EXPECT_NE(call.workspace, nullptr);
    };
    rig.train(0, Batch(kTrainShape, 1, kSeed));
    if (modes == Modes::kRecompute || modes == Modes::kRecomputeHost) {
      EXPECT_THAT(passes, ElementsAre(Pass::kForward, Pass::kForwardKeep, Pass::kBackward));
      EXPECT_THAT(has_output, ElementsAre(true, false, false));
      EXPECT_THAT(has_saved, ElementsAre(false, true, true));
    } else {
      EXPECT_THAT(passes, ElementsAre(Pass::kForwardKeep, Pass::kBackward));
      EXPECT_THAT(has_saved, ElementsAre(true, true));
      EXPECT_EQ(light, modes != Modes::kKeep);
    }
  }
}

TEST(Step, TakesTheBatchThatTheLoaderLeftInTheStagingMemory) {
  Rig one({}), other({});
  const Batch batch(kTrainShape, 1, kSeed);
  StepInputs inputs = inputs_of(batch, 0);
  const StepRequest request = one.train_request(1, 1);
  const StepControl expected = one.runner->step(request, inputs).control;
  std::memcpy(other.runner->batch_staging(1), batch.bytes.data(), batch.bytes.size());
  inputs.host_batch = nullptr;
  expect_equal(other.runner->step(request, inputs).control, expected);
  EXPECT_EQ(all_state(one), all_state(other));
}

TEST(Step, WithoutASupervisedTokenRunsNothing) {
  Rig rig({});
  const auto before = all_state(rig);
  rig.before_call = [](const BlockCall&) { FAIL() << "a block ran"; };
  StepInputs inputs = inputs_of(Batch(kTrainShape, 1, kSeed), 0);
  inputs.host_batch = nullptr;
  inputs.supervised_tokens = 0;
  EXPECT_EQ(rig.runner->step(rig.train_request(0, 1), inputs).control.skip, 1);
  EXPECT_EQ(all_state(rig), before);
}

TEST(Step, WithANonFiniteLossChangesNoStateAndLeavesNothingPending) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    for (const Places places : {Places::kResident, Places::kCpu}) {
      for (const double max_norm : {0.05, 0.0}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(places) << " max_norm " << max_norm);
        const RigOptions options{
            .compute = compute, .tied = true, .layers = 2, .chunk_bytes = 1, .modes = Modes::kMixed, .places = places};
        Rig rig(options);
        const float bad = std::numeric_limits<float>::infinity();
        rig.store->write_master(1, 2, 1, &bad);  // one scale of the first layer
        const auto before = all_state(rig);
        const Batch poisoned(kTrainShape, 1, kSeed);
        const StepOutputs outputs = rig.runner->step(rig.train_request(0, 1), inputs_of(poisoned, 0, max_norm));
        EXPECT_EQ(outputs.control.skip, 1);
        EXPECT_FALSE(std::isfinite(outputs.control.loss_sum));
        EXPECT_FALSE(rig.runner->pending());
        EXPECT_FALSE(outputs.updated_early);
        EXPECT_EQ(all_state(rig), before);
        // And the next step is as if it had never been.
        const float good = random_masters(rig.spec)[1][2];
        rig.store->write_master(1, 2, 1, &good);
        PlainLoop loop = plain_loop(rig.spec, options);
        const Batch batch(kTrainShape, 1, kSeed + 1);
        expect_equal(rig.train(0, batch).control, loop.step(plain_step(batch, inputs_of(batch, 0)), AdamWOptions{}));
        EXPECT_EQ(all_state(rig), all_state(loop, rig.spec, compute));
      }
    }
  }
}

TEST(Pending, UpdatesWaitForTheNextStepWithClippingOnly) {
  RigOptions options = kStreamed;
  for (const Places places : {Places::kResident, Places::kCpu}) {
    options.places = places;
    options.persist = places == Places::kResident ? Persist::kAll : Persist::kNone;
    const bool host = places == Places::kCpu;
    Rig rig(options);
    const Batch batch(kTrainShape, 2, kSeed);
    const auto step = [&](std::int64_t number, double max_norm) {
      return rig.runner->step(rig.train_request(number, 2), inputs_of(batch, number, max_norm));
    };
    const auto updates = [&](bool pending) {
      const auto& tasks = rig.runner->last_schedule().tasks;
      return std::count_if(tasks.begin(), tasks.end(),
                           [&](const Task& task) { return task.op == Op::kUpdate && task.pending == pending; });
    };
    const auto chunks = static_cast<std::ptrdiff_t>(rig.chunks.size());
    EXPECT_FALSE(step(0, 0.05).updated_early);
    EXPECT_EQ(rig.runner->pending(), host);
    EXPECT_EQ(rig.store->pending(), host);
    EXPECT_EQ(updates(false), host ? 0 : chunks);
    EXPECT_EQ(step(1, 0).updated_early, host);
    EXPECT_EQ(updates(true), host ? chunks : 0);
    EXPECT_EQ(updates(false), chunks);
    EXPECT_FALSE(rig.runner->pending());
    step(2, 0.05);
    rig.evaluate(Batch(kEvalShape, 2, kSeed));  // drains
    EXPECT_FALSE(rig.runner->pending());
    EXPECT_FALSE(rig.store->pending());
  }
}

TEST(Pending, UpdateKeepsTheScalarsAndTheControlOfItsOwnStep) {
  // Learning rate, decay, t, clip factor and batch slot all differ from step to step.
  Rig rig(kStreamed);
  PlainLoop loop = plain_loop(rig.spec, kStreamed);
  for (std::int64_t step = 0; step < 5; ++step) {
    const Batch batch(kTrainShape, 2, kSeed + static_cast<unsigned>(step));
    StepInputs inputs = inputs_of(batch, step, 0.02 * static_cast<double>(step + 1));
    inputs.learning_rate = 0.02 / static_cast<double>(step + 1);
    inputs.weight_decay = 0.3 / static_cast<double>(step + 1);
    inputs.update = 3 + 2 * step;
    PlainStep plain = plain_step(batch, inputs);
    expect_equal(rig.runner->step(rig.train_request(step / 2, 2), inputs).control, loop.step(plain, AdamWOptions{}));
  }
  EXPECT_EQ(all_state(rig), all_state(loop, rig.spec, kStreamed.compute));
}

TEST(Pending, WeightsAreNotReadOrWrittenBeforeTheyAreDrained) {
  Rig rig(kStreamed);
  rig.train(0, Batch(kTrainShape, 2, kSeed));
  float value = 1;
  EXPECT_THROW(rig.store->read_master(1, 0, 1, &value), InternalError);
  EXPECT_THROW(rig.store->write_master(1, 0, 1, &value), InternalError);
  EXPECT_THROW(rig.store->zero_moments(), InternalError);
  rig.runner->drain();
  rig.store->read_master(1, 0, 1, &value);
}

TEST(Step, ReadsAWeightThatWasWrittenBetweenStepsWhereverItsCopyLies) {
  for (const Persist persist : {Persist::kAll, Persist::kHalf, Persist::kNone}) {
    RigOptions options = kStreamed;
    options.persist = persist;
    Rig rig(options);
    PlainLoop loop = plain_loop(rig.spec, options);
    const Batch batch(kTrainShape, 2, kSeed);
    rig.train(0, batch);
    rig.runner->drain();
    // The same weights again, from the start: a slot or home that kept the trained ones would show.
    const auto masters = random_masters(rig.spec);
    for (Id id = 0; id < static_cast<Id>(masters.size()); ++id) {
      rig.store->write_master(id, 0, static_cast<std::int64_t>(masters[id].size()), masters[id].data());
    }
    rig.store->zero_moments();
    expect_equal(rig.train(0, batch).control, loop.step(plain_step(batch, inputs_of(batch, 0)), AdamWOptions{}));
    EXPECT_EQ(all_state(rig), all_state(loop, rig.spec, options.compute));
  }
}

TEST(Evaluation, EqualsAPlainForwardAndChangesNothing) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    for (const Id layers : {0, 1, 4}) {
      for (const std::int64_t micro_batches : {std::int64_t{1}, kEvalMicroBatches}) {
        for (const Order order : {Order::kMicroBatch, Order::kLayer}) {
          RigOptions options = kStreamed;
          options.compute = compute;
          options.layers = layers;
          options.order = order;
          Rig rig(options);
          PlainLoop loop = plain_loop(rig.spec, options);
          const auto before = all_state(rig);
          bool trained = false;
          rig.before_call = [&](const BlockCall& call) {
            trained = trained || call.context->training || call.parameters[0].gradient != nullptr;
          };
          const Batch batch(kEvalShape, micro_batches, kSeed);
          const StepOutputs outputs = rig.evaluate(batch, 1);
          EXPECT_EQ(outputs.control.loss_sum, loop.evaluate(plain_step(batch, inputs_of(batch, 0))));
          EXPECT_GT(outputs.control.loss_sum, 0);
          EXPECT_FALSE(trained);
          EXPECT_EQ(all_state(rig), before);
        }
      }
    }
  }
}

TEST(Evaluation, BetweenStepsChangesNoBitOfTraining) {
  Rig plain(kStreamed), evaluating(kStreamed);
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch(kTrainShape, 2, kSeed + static_cast<unsigned>(step));
    evaluating.evaluate(Batch(kEvalShape, 2, kSeed), static_cast<int>(step % 2));
    expect_equal(evaluating.train(step, batch).control, plain.train(step, batch).control);
  }
  EXPECT_EQ(all_state(evaluating), all_state(plain));
}

}  // namespace
}  // namespace protrain::toy
