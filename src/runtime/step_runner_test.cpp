#include "runtime/step_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

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
  PlainLoop loop(rig.spec, options.compute, options.accumulation, random_masters(rig.spec));
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

TEST(Step, EqualsAPlainLoopBitForBitInEveryPlan) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    for (const bool tied : {false, true}) {
      for (const std::int64_t accumulation : {1, 3}) {
        for (const Bytes chunk_bytes : {Bytes{1}, Bytes{25000}, kMiB}) {
          for (const Modes modes : {Modes::kKeep, Modes::kRecompute, Modes::kMixed}) {
            expect_equals_plain_loop({compute, tied, 3, accumulation, chunk_bytes, modes, {}});
          }
        }
      }
    }
  }
}

TEST(Step, EqualsAPlainLoopForModelsOfNoAndOneLayer) {
  for (const Id layers : {0, 1}) {
    for (const bool tied : {false, true}) {
      expect_equals_plain_loop({DType::kBf16, tied, layers, 2, kMiB, Modes::kRecompute, {}});
    }
  }
}

TEST(Step, EqualsAPlainLoopWhateverLaneIsLate) {
  for (const char* lane : {"", "compute", "h2d", "d2h", "gpu_update"}) {
    for (const std::uint64_t seed : {1, 2}) {
      SCOPED_TRACE(testing::Message() << "late lane " << lane << " seed " << seed);
      DeviceFaults faults;
      faults.seed = seed;
      faults.longest_delay_seconds = 5e-4;
      if (*lane != '\0') faults.lanes = {lane};
      expect_equals_plain_loop({DType::kBf16, true, 2, 2, 1, Modes::kMixed, faults});
    }
  }
}

TEST(Step, TellsEveryCallTheSameScaleAndKeyAndItsOwnMicroBatch) {
  Rig rig({DType::kF32, true, 2, 3, kMiB, Modes::kRecompute, {}});
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
  for (const Modes modes : {Modes::kKeep, Modes::kRecompute}) {
    Rig rig({DType::kF32, false, 1, 1, kMiB, modes, {}});
    std::vector<Pass> passes;
    std::vector<bool> has_output;
    rig.before_call = [&](const BlockCall& call) {
      if (call.what.block != 1) return;
      passes.push_back(call.what.pass);
      has_output.push_back(call.output != nullptr);
    };
    rig.train(0, Batch(kTrainShape, 1, kSeed));
    using ::testing::ElementsAre;
    if (modes == Modes::kKeep) {
      EXPECT_THAT(passes, ElementsAre(Pass::kForwardKeep, Pass::kBackward));
    } else {
      EXPECT_THAT(passes, ElementsAre(Pass::kForward, Pass::kForwardKeep, Pass::kBackward));
      EXPECT_THAT(has_output, ElementsAre(true, false, false));
    }
  }
}

TEST(Step, TakesTheBatchThatTheLoaderLeftInTheStagingMemory) {
  Rig one({}), other({});
  const Batch batch(kTrainShape, 1, kSeed);
  StepInputs inputs = inputs_of(batch, 0);
  const StepShape shape = one.train_shape(1, 1);
  const StepControl expected = one.runner->step(shape, inputs).control;
  std::memcpy(other.runner->batch_staging(1), batch.bytes.data(), batch.bytes.size());
  inputs.host_batch = nullptr;
  expect_equal(other.runner->step(shape, inputs).control, expected);
  EXPECT_EQ(all_state(one), all_state(other));
}

TEST(Step, WithoutASupervisedTokenRunsNothing) {
  Rig rig({});
  const auto before = all_state(rig);
  rig.before_call = [](const BlockCall&) { FAIL() << "a block ran"; };
  StepInputs inputs = inputs_of(Batch(kTrainShape, 1, kSeed), 0);
  inputs.host_batch = nullptr;
  inputs.supervised_tokens = 0;
  EXPECT_EQ(rig.runner->step(rig.train_shape(0, 1), inputs).control.skip, 1);
  EXPECT_EQ(all_state(rig), before);
}

TEST(Step, WithANonFiniteGradientOrLossChangesNoState) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    Rig rig({compute, true, 2, 1, 1, Modes::kMixed, {}});
    const float bad = std::numeric_limits<float>::infinity();
    rig.store->write_master(1, 2, 1, &bad);  // one scale of the first layer
    const auto before = all_state(rig);
    const StepOutputs outputs = rig.train(0, Batch(kTrainShape, 1, kSeed));
    EXPECT_EQ(outputs.control.skip, 1);
    EXPECT_FALSE(std::isfinite(outputs.control.loss_sum) && std::isfinite(outputs.control.gradient_norm));
    EXPECT_EQ(all_state(rig), before);
    // And the next step is as if it had never been.
    const float good = random_masters(rig.spec)[1][2];
    rig.store->write_master(1, 2, 1, &good);
    PlainLoop loop(rig.spec, compute, 1, random_masters(rig.spec));
    const Batch batch(kTrainShape, 1, kSeed + 1);
    expect_equal(rig.train(0, batch).control, loop.step(plain_step(batch, inputs_of(batch, 0)), AdamWOptions{}));
    EXPECT_EQ(all_state(rig), all_state(loop, rig.spec, compute));
  }
}

TEST(Evaluation, EqualsAPlainForwardAndChangesNothing) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    for (const Id layers : {0, 1, 4}) {
      for (const std::int64_t micro_batches : {std::int64_t{1}, kEvalMicroBatches}) {
        Rig rig({compute, true, layers, 2, 1, Modes::kMixed, {}});
        PlainLoop loop(rig.spec, compute, 2, random_masters(rig.spec));
        const auto before = all_state(rig);
        bool trained = false;
        rig.before_call = [&](const BlockCall& call) {
          trained = trained || call.context->training || call.parameters[0].gradient != nullptr;
        };
        const Batch batch(kEvalShape, micro_batches, kSeed);
        const StepInputs inputs = inputs_of(batch, 0);
        const StepShape shape{Graph::kEvaluate, kEvalShape, micro_batches, 1};
        const StepOutputs outputs = rig.runner->step(shape, inputs);
        EXPECT_EQ(outputs.control.loss_sum, loop.evaluate(plain_step(batch, inputs)));
        EXPECT_GT(outputs.control.loss_sum, 0);
        EXPECT_FALSE(trained);
        EXPECT_EQ(all_state(rig), before);
      }
    }
  }
}

TEST(Evaluation, BetweenStepsChangesNoBitOfTraining) {
  const RigOptions options{DType::kBf16, false, 2, 2, 1, Modes::kMixed, {}};
  Rig plain(options), evaluating(options);
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch(kTrainShape, 2, kSeed + static_cast<unsigned>(step));
    const Batch eval(kEvalShape, 2, kSeed);
    evaluating.runner->step({Graph::kEvaluate, kEvalShape, 2, static_cast<int>(step % 2)}, inputs_of(eval, 0));
    expect_equal(evaluating.train(step, batch).control, plain.train(step, batch).control);
  }
  EXPECT_EQ(all_state(evaluating), all_state(plain));
}

}  // namespace
}  // namespace protrain::toy
