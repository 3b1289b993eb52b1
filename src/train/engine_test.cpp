#include "train/engine.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "checkpoint/model_files.h"
#include "train/plan_run.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVocabulary = 83;
constexpr BatchShape kShape = {2, 12, 2, false};

// Random tokens; every step other ones.
class RandomBatches final : public BatchSource {
 public:
  std::int64_t steps_per_epoch() const override { return 100; }
  std::int64_t rows() const override { return 400; }
  std::int64_t dropped_samples() const override { return 0; }
  std::vector<BatchShape> shapes() const override { return {kShape}; }
  Bytes step_bytes() const override { return 2 * batch_layout(kShape).bytes; }
  StepBatch fill(std::int64_t step, std::byte* to) const override {
    const BatchLayout parts = batch_layout(kShape);
    std::memset(to, 0, static_cast<std::size_t>(step_bytes()));
    StepBatch batch = {.shape = kShape, .micro_batches = 2};
    for (std::int64_t m = 0; m < batch.micro_batches; ++m) {
      const auto put = [&](Bytes array, std::int64_t index, std::int64_t value) {
        const auto narrow = static_cast<std::int32_t>(value);
        std::memcpy(to + m * parts.bytes + array + 4 * index, &narrow, 4);
      };
      for (std::int64_t sample = 0; sample <= kShape.max_samples; ++sample) {
        put(parts.sample_starts, sample, sample * kShape.row_tokens);
      }
      for (std::int64_t t = 0; t < kShape.tokens(); ++t) {
        const std::int64_t token = (31 * step + 17 * m + 7 * t * t) % kVocabulary;
        put(parts.tokens, t, token);
        put(parts.labels, t, (token + 3) % kVocabulary);
        put(parts.positions, t, t % kShape.row_tokens);
      }
      batch.tokens += kShape.tokens();
    }
    batch.supervised_tokens = batch.tokens;
    return batch;
  }
};

// A run of a tiny model that can change its plan.
class TinyRun {
 public:
  TinyRun() : folder_(fs::path(testing::TempDir()) / "engine_test") {
    fs::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << R"({"model_type": "llama", "vocab_size": 83, "hidden_size": 40,
        "intermediate_size": 77, "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "tie_word_embeddings": false})";
    config_ = parse_config(
        fmt::format(
            "config_name: {}\ntrain_file: none\noutput_dir: none\ndevice: cpu\nbf16: false\ncompute_threads: 1\n"
            "gradient_accumulation_steps: 2\nper_device_train_batch_size: 2\n",
            folder_.string()),
        "run.yaml", {});
    model_ = open_model(real_files(), config_);
    data_.train = std::make_unique<RandomBatches>();
    measured_ = measure_model(config_, *model_, data_);
  }

  RunPlan plan(const std::string& activation) {
    config_.plan = R"({"chunk_bytes": 20000, "n_persist": 1, "n_buffer": 5, "gradient_slots": 5, "offload_distance": 1,
                       "place": {"n_resident": 0, "embedding": "cpu", "head": "resident"}, "activation": ")" +
                   activation + R"("})";
    return plan_run(real_files(), config_, *model_, data_, measured_, std::nullopt);
  }

  void start(const RunPlan& plan) {
    engine_ = std::make_unique<Engine>(config_, *model_, plan, measured_);
    fill_random(engine_->store(), 5);
    engine_->store().zero_moments();
  }
  Engine& engine() { return *engine_; }

  double step() {
    StepRunner& runner = engine_->runner();
    const StepBatch batch = data_.train->fill(steps_, runner.batch_staging(static_cast<int>(steps_ % 2)));
    StepInputs inputs;
    inputs.supervised_tokens = batch.supervised_tokens;
    inputs.learning_rate = 1e-2;
    inputs.max_norm = 1;
    inputs.update = ++steps_;
    return runner.step({Graph::kTrain, kShape, 2, static_cast<int>((steps_ - 1) % 2)}, inputs).control.loss_sum;
  }

  std::vector<float> masters() {
    engine_->runner().drain();
    std::vector<float> all;
    for (Id id = 0; id < static_cast<Id>(model_->spec.parameters.size()); ++id) {
      const std::int64_t n = model_->spec.parameters[static_cast<std::size_t>(id)].elements();
      const std::size_t at = all.size();
      all.resize(at + static_cast<std::size_t>(n));
      engine_->store().read_master(id, 0, n, all.data() + at);
    }
    return all;
  }

 private:
  const fs::path folder_;
  TrainConfig config_;
  std::unique_ptr<ModelSource> model_;
  DataSources data_;
  MeasuredModel measured_;
  std::unique_ptr<Engine> engine_;
  std::int64_t steps_ = 0;
};

TEST(Engine, GoesOnWithAnotherPlanBetweenTwoStepsAndNoBitChanges) {
  constexpr int kSteps = 6;
  std::vector<double> losses;
  std::vector<float> weights;
  {
    TinyRun run;
    const RunPlan keep = run.plan("keep");
    run.start(keep);
    for (int i = 0; i < kSteps; ++i) losses.push_back(run.step());
    weights = run.masters();
  }
  TinyRun run;
  const RunPlan plans[] = {run.plan("keep"), run.plan("recompute"), run.plan("swap")};
  ASSERT_TRUE(same_homes(plans[0], plans[1]));
  run.start(plans[0]);
  std::vector<double> ours;
  for (int i = 0; i < kSteps; ++i) {
    if (i == 2) run.engine().adopt(plans[0], plans[1]);
    if (i == 4 && same_homes(plans[0], plans[2])) run.engine().adopt(plans[0], plans[2]);
    ours.push_back(run.step());
    if (i < 4) {
      EXPECT_EQ(run.engine().high_water(Tier::kDevice), plans[i / 2].layout.bytes(Tier::kDevice));
    }
  }
  EXPECT_EQ(ours, losses);
  EXPECT_EQ(run.masters(), weights);
  EXPECT_LT(plans[1].layout.bytes(Tier::kDevice), plans[0].layout.bytes(Tier::kDevice));
}

// No mapping more than there is.
class NoMoreMemory {
 public:
  NoMoreMemory() {
    getrlimit(RLIMIT_AS, &before_);
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit now = {static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)), before_.rlim_max};
    setrlimit(RLIMIT_AS, &now);
  }
  ~NoMoreMemory() { setrlimit(RLIMIT_AS, &before_); }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;

 private:
  rlimit before_{};
};

TEST(Engine, MemoryThatRunsOutWhileTheMachineIsMeasuredIsSaidInTheRunsOwnTerms) {
  TinyRun run;
  std::string message;
  ExitCode code = ExitCode::kDone;
  try {
    const NoMoreMemory limit;
    run.plan("keep");
  } catch (const Error& error) {
    code = error.code();
    message = error.what();
  }
  EXPECT_EQ(code, ExitCode::kDoesNotFit);
  for (const char* part : {"does not fit: memory ran out while the machine was measured (", "2 rows of 12 tokens",
                           "per_device_train_batch_size", "cutoff_len"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_NO_THROW(run.plan("keep"));  // nothing is left half done
}

TEST(Engine, WhatWouldMoveTheModelsStateIsNoOtherPlanOfTheRun) {
  TinyRun run;
  const RunPlan recompute = run.plan("recompute");
  const RunPlan keep = run.plan("keep");
  EXPECT_FALSE(same_homes(recompute, keep));  // does not fit into the arena
  RunPlan moved = recompute;
  moved.plan.place.front() = UpdatePlace::kResident;
  EXPECT_FALSE(same_homes(recompute, moved));
}

}  // namespace
}  // namespace protrain
