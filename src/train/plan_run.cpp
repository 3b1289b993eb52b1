#include "train/plan_run.h"

#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "train/profile_cache.h"

namespace protrain {
namespace {

// Larger micro-batches stop paying at some size, and do not begin to pay again.
constexpr int kNoBetterInARow = 2;
constexpr double kBetter = 0.005;

class Planner {
 public:
  Planner(Files& files, TrainConfig& config, const ModelSource& model, DataSources& data, MeasuredModel& measured,
          std::optional<Order> order)
      : files_(files), config_(config), model_(model), data_(data), measured_(measured), order_(order) {}

  RunPlan plan() {
    measured_.rates = profile_of(files_, config_, model_, measured_, ProfileCache::kUse, [](const std::string& line) {
                        log::info("profile: {}", line);
                      }).rates;
    settle(measured_);
    return choose_plan(files_, config_, model_, measured_, order_);
  }

  RunPlan plan_with_micro_batch() {
    const std::int64_t rows_of_update = config_.train_batch_size;
    std::optional<RunPlan> best;
    std::int64_t best_rows = 0;
    int no_better = 0;
    for (std::int64_t rows = 1; rows <= rows_of_update && no_better < kNoBetterInARow; ++rows) {
      if (rows_of_update % rows != 0) continue;
      try {
        take(rows);
        RunPlan run = plan();
        log::info("micro-batch of {} rows: {:.4g} s a step predicted", rows, run.found.prediction.step_seconds);
        const bool better =
            !best || run.found.prediction.step_seconds < (1 - kBetter) * best->found.prediction.step_seconds;
        no_better = better ? 0 : no_better + 1;
        if (better) {
          best = std::move(run);
          best_rows = rows;
        }
      } catch (const Error& error) {
        if (!best || error.code() != ExitCode::kDoesNotFit) throw;
        log::info("micro-batch of {} rows: does not fit", rows);
        break;
      }
    }
    // Blocks and data as the best one needs them.
    take(best_rows);
    measured_.rates = best->rates;
    settle(measured_);
    return std::move(*best);
  }

 private:
  void take(std::int64_t rows) {
    config_.per_device_train_batch_size = rows;
    config_.gradient_accumulation_steps = config_.train_batch_size / rows;
    set_micro_batch(data_, rows, config_.gradient_accumulation_steps);
    measured_.shape.accumulation = config_.gradient_accumulation_steps;
    measured_.shape.train_shapes = data_.train->shapes();
    measured_.profile = measure_again(measured_, model_, measured_.shape);
    measured_.rates = {};
  }

  Files& files_;
  TrainConfig& config_;
  const ModelSource& model_;
  DataSources& data_;
  MeasuredModel& measured_;
  const std::optional<Order> order_;
};

}  // namespace

RunPlan plan_run(Files& files, TrainConfig& config, const ModelSource& model, DataSources& data,
                 MeasuredModel& measured, std::optional<Order> order) {
  Planner planner(files, config, model, data, measured, order);
  return config.per_device_train_batch_size == 0 ? planner.plan_with_micro_batch() : planner.plan();
}

}  // namespace protrain
