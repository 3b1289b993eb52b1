#include "train/plan_run.h"

#include <map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "train/profile_cache.h"
#include "train/signals.h"

namespace protrain {
namespace {

class Planner {
 public:
  Planner(Files& files, TrainConfig& config, const ModelSource& model, DataSources& data, MeasuredModel& measured,
          const std::optional<RunState>& then)
      : files_(files), config_(config), model_(model), data_(data), measured_(measured), then_(then) {}

  RunPlan plan() {
    measured_.rates = profile_of(files_, config_, model_, measured_, ProfileCache::kUse, [](const std::string& line) {
                        stop_if_signalled();
                        log::info("profile: {}", line);
                      }).rates;
    settle(measured_);
    return choose_plan(files_, config_, model_, measured_, then_ ? std::optional(then_->order) : std::nullopt);
  }

  RunPlan plan_with_micro_batch() {
    if (then_ && then_->sampling.micro_batch * then_->sampling.accumulation == config_.train_batch_size) {
      try {
        take(then_->sampling.micro_batch);
        return plan();
      } catch (const Error& error) {
        if (error.code() != ExitCode::kDoesNotFit) throw;
        log::info("micro-batch of {} rows, as the run had: does not fit any more", then_->sampling.micro_batch);
      }
    }
    std::map<std::int64_t, RunPlan> plans;
    const std::int64_t best = fastest_micro_batch(config_.train_batch_size, [&](std::int64_t rows) {
      std::optional<double> seconds;
      try {
        take(rows);
        seconds = plans.emplace(rows, plan()).first->second.found.prediction.step_seconds;
        log::info("micro-batch of {} rows: {:.4g} s a step predicted", rows, *seconds);
      } catch (const Error& error) {
        if (plans.empty() || error.code() != ExitCode::kDoesNotFit) throw;
        log::info("micro-batch of {} rows: does not fit", rows);
      }
      return seconds;
    });
    // Blocks and data as the best one needs them.
    take(best);
    measured_.rates = plans.at(best).rates;
    settle(measured_);
    return std::move(plans.at(best));
  }

 private:
  void take(std::int64_t rows) {
    config_.per_device_train_batch_size = rows;
    config_.gradient_accumulation_steps = config_.train_batch_size / rows;
    set_micro_batch(data_, rows, config_.gradient_accumulation_steps);
    RunShape shape = measured_.shape;
    shape.accumulation = config_.gradient_accumulation_steps;
    shape.train_shapes = data_.train->shapes();
    change_shape(measured_, model_, std::move(shape));
  }

  Files& files_;
  TrainConfig& config_;
  const ModelSource& model_;
  DataSources& data_;
  MeasuredModel& measured_;
  const std::optional<RunState>& then_;
};

}  // namespace

RunPlan plan_run(Files& files, TrainConfig& config, const ModelSource& model, DataSources& data,
                 MeasuredModel& measured, const std::optional<RunState>& then) {
  for (const std::string& line : idle_limits(config, memory_there(measured))) log::warning("{}", line);
  Planner planner(files, config, model, data, measured, then);
  return config.per_device_train_batch_size == 0 ? planner.plan_with_micro_batch() : planner.plan();
}

}  // namespace protrain
