#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "base/host_memory.h"
#include "base/log.h"
#include "base/seconds_since.h"
#include "base/thread_pool.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/training_checkpoint.h"
#include "train/banner.h"
#include "train/data_sources.h"
#include "train/engine.h"
#include "train/evaluate.h"
#include "train/forecast.h"
#include "train/learning_rate.h"
#include "train/measured_model.h"
#include "train/metrics.h"
#include "train/output_folder.h"
#include "train/plan_file.h"
#include "train/plan_knobs.h"
#include "train/plan_run.h"
#include "train/run_state.h"
#include "train/signals.h"
#include "train/step_cost.h"
#include "train/tensorboard.h"

namespace protrain {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

// What drivers and libraries may load on the device after the first step without a word.
constexpr Bytes kOutsideGrowth = 16 * kMiB;
// A plan that gains less in prediction is not worth a switch between two steps.
constexpr double kWorthASwitch = 0.03;

bool interrupted() { return signal_received() != 0; }

std::int64_t total_steps(const TrainConfig& config, const BatchSource& source) {
  if (config.max_steps >= 0) return config.max_steps;
  return static_cast<std::int64_t>(std::ceil(config.num_train_epochs * static_cast<double>(source.steps_per_epoch())));
}

// One run from start to end. Members stand in the order in which they are made.
class Trainer {
 public:
  Trainer(const TrainConfig& config, Files& files, const ProgressOptions& progress);
  void run();  // Interrupted after a checkpoint is saved

 private:
  RunPlan& plan() { return *plans_.back(); }
  void write_plan();
  void load_state();
  void open_logs();
  void train_steps();
  void train_one(Loader& loader);
  void log_step(const StepBatch&, const StepInputs&, const StepOutputs&, double flops, double seconds, double stalled);
  void count_nonfinite(bool skipped);
  [[noreturn]] void stop_half_updated();
  void write_trace(const Timeline&);
  void compare(const StepBatch&, double seconds, const Timeline*);
  void plan_anew(const Timeline&);
  void check_memory();
  void evaluate_now();
  bool owes_evaluation() const;
  void check_length(const fs::path& checkpoint) const;
  void save(bool whole);
  [[noreturn]] void save_and_stop();
  ExportOptions export_options();

  TrainConfig config_;  // resolved
  Files& files_;
  const ProgressOptions& progress_options_;
  const fs::path output_;
  const OutputLock lock_;
  const std::vector<fs::path> checkpoints_;  // to go on from, in the order in which to try them
  const std::unique_ptr<ModelSource> model_;
  DataSources data_;
  const std::int64_t total_steps_;
  const LearningRate rate_;
  MeasuredModel measured_;
  std::vector<std::unique_ptr<RunPlan>> plans_;  // the last one rules; the engine still points into earlier ones
  std::unique_ptr<Engine> engine_;
  Forecast forecast_;

  TrainingState state_;
  RunState run_;
  std::optional<std::int64_t> saved_step_, resumable_step_;  // of this run's newest checkpoint, and newest whole one
  Bytes device_peak_ = 0;
  std::int64_t unplanned_ = 0;  // allocations on the device since the start-up ended
  bool outgrown_ = false;       // was warned of
  std::optional<MetricsLog> metrics_;
  std::optional<TensorBoardLog> board_;
  std::optional<Progress> progress_;
};

// Mistakes in the plan's knobs are told before data is prepared and the machine is measured.
std::unique_ptr<ModelSource> model_of_plan(Files& files, const TrainConfig& config) {
  auto model = open_model(files, config);
  PlanKnobs(files, config).space(model->spec, compute_dtype(config, device_kind(config)));
  return model;
}

Trainer::Trainer(const TrainConfig& config, Files& files, const ProgressOptions& progress)
    : config_(config),
      files_(files),
      progress_options_(progress),
      output_(config.output_dir),
      lock_(files, output_),
      checkpoints_(prepare_output_folder(files, config)),
      model_(model_of_plan(files, config)),
      data_(open_data(files, config, model_->spec)),
      total_steps_(total_steps(config, *data_.train)),
      rate_(make_learning_rate(config, total_steps_)),
      measured_(measure_model(config, *model_, data_)),
      forecast_(config.prediction_steps) {
  stop_if_signalled();  // before the first step there is nothing to save: the state is what it was made from
  plans_.push_back(std::make_unique<RunPlan>(
      plan_run(files_, config_, *model_, data_, measured_, stored_run(files_, checkpoints_))));
  files_.write_text(output_ / kRunConfigFile, print_config(config_), false);
  stop_if_signalled();
  plan().host_before = host_memory().peak;
  restart_peak();
  engine_ = std::make_unique<Engine>(config_, *model_, plan(), measured_);
  settle_limits(plan(), *measured_.device);
  write_plan();
}

// What is expected, before any step is made.
void Trainer::write_plan() {
  const Prediction& prediction = plan().found.prediction;
  forecast_.expect(prediction);
  files_.write_text(output_ / "plan.json", plan_file(plan(), model_->spec), false);
  files_.write_text(output_ / "trace-predicted.json", chrome_trace(prediction.schedule, prediction.timeline), false);
}

void Trainer::load_state() {
  run_.sampling = data_.sampling;
  run_.compute_threads = measured_.compute_threads;
  run_.order = plan().plan.order;
  run_.settings = update_settings(config_, plan().shape.compute);
  ChunkStore& store = engine_->store();
  if (checkpoints_.empty()) {
    state_.data_fingerprint = data_.train_tokens->fingerprint();
    if (model_->weights) {
      model_->weights->load(store);
    } else {
      fill_random(store, static_cast<std::uint64_t>(config_.seed));
    }
    ThreadPool pool(allowed_cores());
    store.zero_moments(&pool);
    return;
  }
  Resumed resumed = load_first(files_, checkpoints_, output_, store);
  const std::string name = resumed.from.string();
  state_ = resumed.state;
  const RunState then = parse_run_state(state_.extra_json, name);
  check_resume(run_, data_.train_tokens->fingerprint(), then, state_.data_fingerprint, name);
  run_.epoch = then.epoch;
  run_.tokens_seen = then.tokens_seen;
  run_.nonfinite_in_row = then.nonfinite_in_row;
  run_.evaluated_step = then.evaluated_step;
  check_length(resumed.from);
  leave_other_branch(files_, resumed, output_);
  if (resumed.own) saved_step_ = resumable_step_ = state_.step;
  log::info("resuming from {} at step {}", name, state_.step);
}

void Trainer::check_length(const fs::path& checkpoint) const {
  if (state_.step < total_steps_) return;
  const bool by_steps = config_.max_steps >= 0;
  const std::string length =
      by_steps ? fmt::format("max_steps: {}", config_.max_steps)
               : fmt::format("num_train_epochs: {} ({} steps)", config_.num_train_epochs, total_steps_);
  if (state_.step == total_steps_) {
    log::info("{} is at step {}, the last one of {}: nothing is left to train", checkpoint.string(), state_.step,
              length);
    return;
  }
  fail(ExitCode::kConfig, "{}: {} is at step {} already: raise {}, or resume from an earlier checkpoint", length,
       checkpoint.string(), state_.step, by_steps ? "max_steps" : "num_train_epochs");
}

void Trainer::open_logs() {
  remove_traces_after(files_, output_, state_.step);
  metrics_.emplace(files_, output_ / "metrics.jsonl", state_.step);
  if (!config_.report_to.empty()) board_.emplace(files_, output_ / "tensorboard", state_.step + 1);
  for (const std::string& line : banner(config_, *model_, data_, measured_, plan(), total_steps_))
    log::info("{}", line);
  progress_.emplace(progress_options_, state_.step, total_steps_);
}

void Trainer::run() {
  stop_if_signalled();
  load_state();
  announce_checkpoint(true);
  // Only now: whatever refuses this run must leave the earlier one's checkpoints alone.
  if (config_.overwrite_output_dir && config_.resume_from_checkpoint.empty()) remove_checkpoints(files_, output_);
  open_logs();
  reset_allocator_counts();
  if (interrupted()) save_and_stop();
  if (owes_evaluation()) evaluate_now();
  train_steps();
  if (data_.eval && run_.evaluated_step != state_.step) evaluate_now();
  if (config_.save_steps > 0 && saved_step_ != state_.step) save(!config_.save_only_model);
  if (interrupted()) save_and_stop();
  progress_.reset();
  engine_->runner().drain();
  ExportOptions options = export_options();
  options.replace_companions = config_.overwrite_output_dir;
  export_model(files_, engine_->store(), model_->config_json, model_->tokenizer_folder, output_, options);
  log::info("device memory: {} planned, {} used at most{}; the model's state is {}",
            format_bytes(plan().layout.bytes(Tier::kDevice)), format_bytes(engine_->high_water(Tier::kDevice)),
            plans_.size() > 1 ? " since the plan was changed" : "",
            format_bytes(state_bytes(model_->spec, plan().shape.compute)));
  log::info("trained model written to {}", output_.string());
}

void Trainer::train_steps() {
  Loader loader(*data_.train, state_.step, std::max(state_.step, total_steps_));
  while (state_.step < total_steps_) {
    if (interrupted()) save_and_stop();
    train_one(loader);
    if (owes_evaluation()) evaluate_now();
    if (config_.save_steps > 0 && state_.step % config_.save_steps == 0) save(!config_.save_only_model);
  }
}

void Trainer::train_one(Loader& loader) {
  const auto begin = Clock::now();
  StepRunner& runner = engine_->runner();
  const int slot = static_cast<int>(state_.step % 2);
  const double stalled_before = loader.stalled_seconds();
  const StepBatch batch = loader.next(runner.batch_staging(slot));

  StepInputs inputs;
  inputs.supervised_tokens = batch.supervised_tokens;
  inputs.dropout_key = dropout_key(static_cast<std::uint64_t>(config_.seed), state_.step);
  inputs.learning_rate = rate_.at(state_.step);
  inputs.weight_decay = config_.weight_decay;
  inputs.max_norm = config_.max_grad_norm;
  inputs.update = state_.applied_updates + 1;
  const StepRequest request = {Graph::kTrain, batch.shape, batch.micro_batches, slot};
  RunOptions options;
  const bool keeps_trace = std::ranges::find(config_.trace_steps, state_.step + 1) != config_.trace_steps.end();
  options.trace = keeps_trace || forecast_.wants_trace();
  options.abandon = interrupted;
  const StepOutputs outputs = runner.step(request, inputs, options);
  if (outputs.run.abandoned) save_and_stop();

  const bool skipped = outputs.control.skip != 0;
  ++state_.step;
  if (!skipped) ++state_.applied_updates;
  run_.tokens_seen += batch.tokens;
  run_.epoch = batch.epoch;
  const double flops = step_flops(model_->spec, batch, runner.batch_staging(slot));
  const double seconds = seconds_since(begin), stalled = loader.stalled_seconds() - stalled_before;
  log_step(batch, inputs, outputs, flops, seconds, stalled);
  if (keeps_trace) write_trace(outputs.run.timeline);
  compare(batch, seconds - stalled, options.trace ? &outputs.run.timeline : nullptr);
  check_memory();
  if (skipped && outputs.updated_early) stop_half_updated();
  count_nonfinite(skipped && batch.supervised_tokens > 0);
}

void Trainer::log_step(const StepBatch& batch, const StepInputs& inputs, const StepOutputs& outputs, double flops,
                       double seconds, double stalled) {
  const bool skipped = outputs.control.skip != 0;
  const double loss = outputs.control.loss_sum / static_cast<double>(batch.supervised_tokens);
  const ProgressNumbers numbers = {.loss = loss,
                                   .learning_rate = inputs.learning_rate,
                                   .gradient_norm = outputs.control.gradient_norm,
                                   .tokens_per_second = static_cast<double>(batch.tokens) / seconds,
                                   .skipped = skipped};
  const bool logged = skipped || state_.step % config_.logging_steps == 0 || state_.step == total_steps_;
  progress_->step(state_.step, numbers, logged);
  if (!logged) return;

  device_peak_ = std::max(device_peak_, measured_.device->memory().in_use);
  MetricsRow row(state_.step);
  row.add("kind", "train")
      .add("epoch", batch.epoch)
      .add("loss", loss)
      .add("grad_norm", outputs.control.gradient_norm)
      .add("learning_rate", inputs.learning_rate)
      .add("skipped", skipped)
      .add("tokens", run_.tokens_seen)
      .add("step_tokens", batch.tokens)
      .add("supervised_tokens", batch.supervised_tokens)
      .add("tokens_per_second", numbers.tokens_per_second)
      .add("step_seconds", seconds)
      .add("data_stall_seconds", stalled)
      .add("model_tflops", flops / seconds / 1e12)
      .add("device_peak_bytes", device_peak_)
      .add("arena_high_water_bytes", engine_->high_water(Tier::kDevice))
      .add("unplanned_allocations", unplanned_)
      .add("host_peak_bytes", host_memory().peak)
      .add("predicted_step_seconds", forecast_.step_seconds())
      .add("applied_updates", state_.applied_updates);
  metrics_->write(row);
  if (board_) board_->write(row, "train");
}

void Trainer::compare(const StepBatch& batch, double seconds, const Timeline* timeline) {
  const bool full =
      batch.micro_batches == plan().shape.accumulation && batch.shape == plan().shape.train_shapes.front();
  const std::optional<ForecastError> error = forecast_.step(seconds, full, timeline);
  if (!error) return;
  log::info("step {}: {}", state_.step, forecast_.describe(*error));
  MetricsRow row(state_.step);
  row.add("kind", "forecast")
      .add("predicted_step_seconds", forecast_.step_seconds())
      .add("measured_step_seconds", error->measured_seconds)
      .add("step_error", error->step);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (error->lanes[lane]) row.add(fmt::format("{}_error", lane_name(static_cast<Lane>(lane))), *error->lanes[lane]);
  }
  metrics_->write(row);
  if (forecast_.lasting()) plan_anew(*timeline);
}

// The prediction has been far off for long: the machine is not what was measured. The last trace is a newer
// measurement; with it the knobs that leave the model's state in place are chosen once more.
void Trainer::plan_anew(const Timeline& timeline) {
  Revision revision = revise_plan(config_, *model_, plan(), engine_->runner().last_schedule(), timeline);
  const double gain = 1 - revision.next.found.prediction.step_seconds / revision.present.step_seconds;
  if (gain > kWorthASwitch && revision.next.found.missing.fits() && same_homes(plan(), revision.next)) {
    log::info("step {}: with the rates of its trace another plan is {:.1f} % faster: {}", state_.step, 100 * gain,
              revision.next.reason);
    plans_.push_back(std::make_unique<RunPlan>(std::move(revision.next)));
    engine_->adopt(*plans_[plans_.size() - 2], plan());
  } else {
    log::info("step {}: the rates are those of its trace from here on; the plan stays", state_.step);
    plan().rates = std::move(revision.rates);
    plan().found.prediction = std::move(revision.present);
    plan().found.runner_up.reset();  // its time was of the old rates
  }
  write_plan();
}

void Trainer::count_nonfinite(bool nonfinite) {
  run_.nonfinite_in_row = nonfinite ? run_.nonfinite_in_row + 1 : 0;
  if (!nonfinite) return;
  log::warning("step {}: loss or gradient norm is not finite; the update is skipped", state_.step);
  if (run_.nonfinite_in_row < config_.max_nonfinite_steps) return;
  const std::optional<fs::path> kept = newest_checkpoint(files_, output_);
  fail(ExitCode::kNonFinite,
       "loss or gradient norm was not finite in {} updates in a row, up to step {}; {}. A lower learning_rate or more "
       "warm-up may help",
       run_.nonfinite_in_row, state_.step,
       kept ? "the last checkpoint is " + kept->string() : "no checkpoint was saved");
}

// Without clipping chunks are updated as soon as their gradient is there; a gradient found not finite after that has
// left a model that is neither old nor new.
void Trainer::stop_half_updated() {
  const std::optional<fs::path> kept = newest_checkpoint(files_, output_);
  fail(ExitCode::kNonFinite,
       "step {}: a gradient is not finite, and other weights were updated before it was known (max_grad_norm: 0); {}. "
       "With max_grad_norm above 0 the whole update would have been skipped",
       state_.step, kept ? "the last checkpoint is " + kept->string() : "no checkpoint was saved");
}

void Trainer::write_trace(const Timeline& timeline) {
  files_.write_text(output_ / trace_file(state_.step), chrome_trace(engine_->runner().last_schedule(), timeline),
                    false);
}

// The plan was accepted as the whole truth about device memory; what comes beside it must be seen.
void Trainer::check_memory() {
  const AllocatorCounts counts = allocator_counts();
  if (const std::int64_t now = counts.plain + counts.mismatches; now > 0 && unplanned_ == 0) {
    log::warning("step {}: {} allocations outside the plan", state_.step, now);
  }
  unplanned_ = counts.plain + counts.mismatches;
  if (measured_.device->kind() != DeviceKind::kCuda || outgrown_) return;
  const Bytes outside = measured_.device->memory().in_use - plans_.front()->layout.bytes(Tier::kDevice);
  if (outside <= plan().limits.outside + kOutsideGrowth) return;
  outgrown_ = true;
  log::warning("step {}: {} of the device are in use beside the plan, {} were before the first step", state_.step,
               format_bytes(outside), format_bytes(plan().limits.outside));
}

bool Trainer::owes_evaluation() const {
  if (!data_.eval || run_.evaluated_step == state_.step) return false;
  if (state_.step == 0) return config_.eval_on_start;
  return config_.eval_steps > 0 && state_.step % config_.eval_steps == 0;
}

void Trainer::evaluate_now() {
  const std::int64_t batches = data_.eval->steps_per_epoch();
  const std::optional<Evaluation> result = evaluate(engine_->runner(), *data_.eval, interrupted,
                                                    [&](std::int64_t done) { progress_->evaluating(done, batches); });
  if (!result) save_and_stop();
  run_.evaluated_step = state_.step;
  device_peak_ = std::max(device_peak_, measured_.device->memory().in_use);
  MetricsRow row(state_.step);
  row.add("kind", "evaluate")
      .add("epoch", run_.epoch)
      .add("eval_loss", result->loss)
      .add("eval_perplexity", result->perplexity)
      .add("eval_tokens", result->tokens)
      .add("eval_supervised_tokens", result->supervised_tokens)
      .add("eval_seconds", result->seconds)
      .add("device_peak_bytes", device_peak_)
      .add("arena_high_water_bytes", engine_->high_water(Tier::kDevice))
      .add("unplanned_allocations", unplanned_)
      .add("host_peak_bytes", host_memory().peak);
  metrics_->write(row);
  if (board_) board_->write(row, "eval");
  log::info("step {}: evaluation loss {:.4f}, perplexity {:.2f} over {} tokens", state_.step, result->loss,
            result->perplexity, result->supervised_tokens);
}

ExportOptions Trainer::export_options() {
  ExportOptions options;
  options.dtype = export_dtype(config_.export_dtype, *model_, plan().shape.compute);
  options.sync = true;
  return options;
}

void Trainer::save(bool whole) {
  engine_->runner().drain();
  state_.extra_json = run_state_json(run_);
  const SaveOptions options = {
      .keep_last = static_cast<int>(config_.save_total_limit), .model_only = !whole, .model = export_options()};
  const fs::path saved = save_checkpoint(files_, engine_->store(), state_, model_->config_json,
                                         model_->tokenizer_folder, output_, options);
  saved_step_ = state_.step;
  if (whole) resumable_step_ = state_.step;
  log::info("saved {}", saved.string());
}

void Trainer::save_and_stop() {
  const int signal = signal_received();
  if (resumable_step_ != state_.step) save(true);
  throw Interrupted(signal);
}

}  // namespace

ExitCode train(const TrainConfig& config, Files& files, const ProgressOptions& progress) {
  const SignalScope signals(progress.signals_on);
  try {
    Trainer(config, files, progress).run();
    return ExitCode::kDone;
  } catch (const Interrupted& stop) {
    log::info("stopped by {}", signal_name(stop.signal()));
    if (stop.signal() == SIGHUP) return ExitCode::kHangup;
    return stop.signal() == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated;
  }
}

}  // namespace protrain
