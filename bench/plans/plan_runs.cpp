// Predicted beside measured: plan_runs CONFIG.yaml CASES.json OUT.json [--key value ...]. Trains one model for a few
// steps under each case's plan, limits and knobs, in one process, with one measurement of the machine. A case is
// {"name": TEXT, "steps": N, "keys": {KEY: VALUE, ...}}: keys of the configuration, such as plan (an object of knobs)
// and device_memory_limit. A prediction stands in OUT.json before the first step of its case is made. Beside it lie
// CASE.predicted.json and CASE.trace.json: the timelines of a predicted step and of the last one.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/faulty_files.h"
#include "base/host_memory.h"
#include "checkpoint/random_fill.h"
#include "train/engine.h"
#include "train/plan_file.h"
#include "train/plan_run.h"
#include "train/step_cost.h"

namespace protrain {
namespace {

using json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// Weights of the size that fresh ones have, without the seconds that a billion normal draws take.
void fill_quickly(ChunkStore& store) {
  ThreadPool pool(allowed_cores());
  std::vector<float> pattern(1 << 22);
  fill_normal(1, 1, 0.02, 0, static_cast<std::int64_t>(pattern.size()), pattern.data());
  const std::vector<float> ones(1 << 16, 1.0F);
  for (std::size_t id = 0; id < store.spec().parameters.size(); ++id) {
    const ParameterSpec& parameter = store.spec().parameters[id];
    const std::vector<float>& from = parameter.fill == Fill::kNormal ? pattern : ones;
    const std::int64_t elements = parameter.elements();
    for (std::int64_t first = 0; first < elements; first += static_cast<std::int64_t>(from.size())) {
      const auto count = std::min<std::int64_t>(static_cast<std::int64_t>(from.size()), elements - first);
      store.write_master(static_cast<Id>(id), first, count, from.data(), &pool);
    }
  }
  store.zero_moments(&pool);
}

class Runs {
 public:
  Runs(std::vector<std::string> words, std::string out) : words_(std::move(words)), out_(std::move(out)) {}

  void run(const json& one) {
    const Clock::time_point began = Clock::now();
    json& row = rows_.emplace_back(json{{"case", one.at("name")}});
    try {
      measure(one, row, began);
    } catch (const Error& error) {
      row["refused"] = error.what();
      row["code"] = static_cast<int>(error.code());
    }
    row["seconds"] = seconds_since(began);
    write();
    fmt::print("{}\n", row.dump());
    std::fflush(stdout);
  }

 private:
  void measure(const json& one, json& row, Clock::time_point began) {
    std::vector<std::string> overrides(words_.begin() + 1, words_.end());
    const json keys = one.value("keys", json::object());
    for (const auto& [key, value] : keys.items()) {
      overrides.push_back("--" + key);
      overrides.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    }
    TrainConfig config = load_config(words_[0], overrides);
    const std::unique_ptr<ModelSource> model = open_model(files_, config);
    DataSources data = open_data(files_, config, model->spec);
    MeasuredModel measured = measure_model(config, *model, data);
    RunPlan run = plan_run(files_, config, *model, data, measured, {});
    Engine engine(config, *model, run, measured);
    settle_limits(run, *measured.device);
    fill_quickly(engine.store());
    const json plan = json::parse(plan_file(run, model->spec));
    for (const auto& [key, value] : plan.items()) {
      if (key != "layout" && key != "activation" && key != "place") row["plan"][key] = value;
    }
    row["plan"]["text"] = run.reason;
    row["rows"] = config.per_device_train_batch_size * config.gradient_accumulation_steps;
    row["micro_batch"] = config.per_device_train_batch_size;
    row["cpu_update_seconds_per_element"] = run.rates.cpu_update.per_unit;  // alone, as timed at this start
    row["predicted_step_seconds"] = run.found.prediction.step_seconds;
    row["seconds_to_first_step"] = seconds_since(began);
    write();
    const Prediction& prediction = run.found.prediction;
    write_trace(row, "predicted", prediction.schedule, prediction.timeline);
    steps(config, data, engine, one.at("steps").get<std::int64_t>(), row);
    row["high_water_device"] = engine.high_water(Tier::kDevice);
    row["planned_device"] = run.layout.bytes(Tier::kDevice);
    row["driver_device"] = measured.device->memory().in_use;
    row["outside"] = run.limits.outside;
    row["planned_host"] = host_need(MemoryNeed(run.layout), run.limits);
    const double measured_seconds = row.at("step_seconds");
    row["error"] = measured_seconds / run.found.prediction.step_seconds - 1;
  }

  void steps(const TrainConfig& config, DataSources& data, Engine& engine, std::int64_t count, json& row) {
    Loader loader(*data.train, 0, count);
    std::vector<double> times;
    for (std::int64_t step = 0; step < count; ++step) {
      const Clock::time_point began = Clock::now();
      const int slot = static_cast<int>(step % 2);
      const StepBatch batch = loader.next(engine.runner().batch_staging(slot));
      StepInputs inputs;
      inputs.supervised_tokens = batch.supervised_tokens;
      inputs.learning_rate = 1e-5;
      inputs.weight_decay = config.weight_decay;
      inputs.max_norm = config.max_grad_norm;
      inputs.update = step + 1;
      RunOptions options;
      options.trace = step + 1 == count;
      const StepOutputs outputs =
          engine.runner().step({Graph::kTrain, batch.shape, batch.micro_batches, slot}, inputs, options);
      times.push_back(seconds_since(began));
      row["losses"].push_back(outputs.control.loss_sum / static_cast<double>(batch.supervised_tokens));
      if (!options.trace) continue;
      row["tokens_a_step"] = batch.tokens;
      std::array<double, kLanes> busy{};
      for (const Span& span : outputs.run.timeline.spans) {
        busy[static_cast<std::size_t>(span.lane)] += span.end_seconds - span.begin_seconds;
      }
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        if (busy[lane] > 0) row["busy"][std::string(lane_name(static_cast<Lane>(lane)))] = busy[lane];
      }
      row["traced_seconds"] = outputs.run.timeline.seconds;
      write_trace(row, "trace", engine.runner().last_schedule(), outputs.run.timeline);
    }
    engine.runner().drain();
    row["times"] = times;
    // The first step alone has no updates pending.
    std::vector<double> steady(times.begin() + std::min<std::ptrdiff_t>(1, count - 1), times.end());
    std::ranges::sort(steady);
    row["step_seconds"] = steady[steady.size() / 2];
  }

  void write_trace(const json& row, std::string_view what, const Schedule& schedule, const Timeline& timeline) const {
    const std::string name = fmt::format("{}.{}.json", row.at("case").get<std::string>(), what);
    std::ofstream(std::filesystem::path(out_).replace_filename(name)) << chrome_trace(schedule, timeline);
  }

  void write() const { std::ofstream(out_) << rows_.dump(1) << '\n'; }

  const std::vector<std::string> words_;
  const std::string out_;
  Files& files_ = environment_files();
  json rows_ = json::array();
};

int run_all(const std::vector<std::string>& words) {
  if (words.size() < 3) {
    fmt::print(stderr, "plan_runs CONFIG.yaml CASES.json OUT.json [--key value ...]\n");
    return 2;
  }
  std::vector<std::string> config = words;
  config.erase(config.begin() + 1, config.begin() + 3);
  Runs runs(config, words[2]);
  for (const json& one : json::parse(std::ifstream(words[1]))) runs.run(one);
  return 0;
}

}  // namespace
}  // namespace protrain

int main(int count, char** words) {
  try {
    return protrain::run_all({words + 1, words + count});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
