#include "train/run_state.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/json_files.h"
#include "plan/plan_json.h"

namespace protrain {

using nlohmann::json;

std::map<std::string, std::string> update_settings(const TrainConfig& config, DType compute) {
  constexpr std::array<std::string_view, 14> kKeys = {
      "learning_rate",  "lr_scheduler_type", "warmup_steps", "warmup_ratio",    "min_lr_ratio",
      "lr_decay_steps", "lr_decay_type",     "weight_decay", "adam_beta1",      "adam_beta2",
      "adam_epsilon",   "max_grad_norm",     "max_steps",    "num_train_epochs"};
  std::map<std::string, std::string> settings = {{"compute_dtype", std::string(transformers_name(compute))}};
  for (const ConfigKey& key : config_keys()) {
    if (key.name == "num_train_epochs" && config.max_steps >= 0) continue;  // max_steps rules
    if (std::ranges::find(kKeys, key.name) == kKeys.end()) continue;
    settings.emplace(key.name, print_value(config, key));
  }
  return settings;
}

std::string run_state_json(const RunState& state) {
  const SamplingOptions& sampling = state.sampling;
  return json{{"epoch", state.epoch},
              {"tokens_seen", state.tokens_seen},
              {"nonfinite_in_row", state.nonfinite_in_row},
              {"evaluated_step", state.evaluated_step},
              {"compute_threads", state.compute_threads},
              {"order", order_name(state.order)},
              {"settings", state.settings},
              {"sampling",
               {{"cutoff_len", sampling.cutoff_len},
                {"split_long", sampling.split_long},
                {"packing", sampling.packing},
                {"shuffle", sampling.shuffle},
                {"seed", sampling.seed},
                {"per_device_train_batch_size", sampling.micro_batch},
                {"gradient_accumulation_steps", sampling.accumulation}}}}
      .dump(2);
}

RunState parse_run_state(const std::string& text, const std::string& file) {
  const json tree = parse_json(text, file, ExitCode::kFiles);
  try {
    RunState state;
    state.epoch = tree.at("epoch");
    state.tokens_seen = tree.at("tokens_seen");
    state.nonfinite_in_row = tree.at("nonfinite_in_row");
    state.evaluated_step = tree.at("evaluated_step");
    state.compute_threads = tree.at("compute_threads");
    if (tree.value("order", "") == order_name(Order::kLayer)) state.order = Order::kLayer;
    if (tree.contains("settings")) state.settings = tree["settings"];  // absent in earlier versions' checkpoints
    const json& sampling = tree.at("sampling");
    state.sampling = {.cutoff_len = sampling.at("cutoff_len"),
                      .split_long = sampling.at("split_long"),
                      .packing = sampling.at("packing"),
                      .shuffle = sampling.at("shuffle"),
                      .seed = sampling.at("seed"),
                      .micro_batch = sampling.at("per_device_train_batch_size"),
                      .accumulation = sampling.at("gradient_accumulation_steps")};
    return state;
  } catch (const json::exception& error) {
    fail(ExitCode::kFiles, "{}: not the state of a run ({})", file, error.what());
  }
}

std::optional<RunState> stored_run(Files& files, const std::vector<std::filesystem::path>& checkpoints) {
  for (const std::filesystem::path& checkpoint : checkpoints) {
    const std::filesystem::path file = checkpoint / kTrainerStateFile;
    try {
      const TrainerState stored = parse_trainer_state(files.read_text(file), file.string());
      return parse_run_state(stored.state.extra_json, file.string());
    } catch (const Error&) {
      continue;  // whether it can be gone on from is asked, and told, when it is loaded
    }
  }
  return std::nullopt;
}

void check_resume(const RunState& now, std::uint64_t data_now, const RunState& then, std::uint64_t data_then,
                  const std::string& checkpoint) {
  if (data_now != data_then) {
    fail(ExitCode::kData,
         "{} was made with other training data: resume needs the same train_file; to train its model on new data, give "
         "the "
         "checkpoint as model_name_or_path",
         checkpoint);
  }
  const auto same = [&](std::string_view key, auto here, auto there) {
    if (here == there) return;
    fail(ExitCode::kConfig,
         "{} was made with {}: {}, this run has {}: samples would be repeated or left out; set it back", checkpoint,
         key, there, here);
  };
  same("cutoff_len", now.sampling.cutoff_len, then.sampling.cutoff_len);
  same("split_long", now.sampling.split_long, then.sampling.split_long);
  same("packing", now.sampling.packing, then.sampling.packing);
  same("shuffle", now.sampling.shuffle, then.sampling.shuffle);
  same("seed", now.sampling.seed, then.sampling.seed);
  same("per_device_train_batch_size x gradient_accumulation_steps",
       now.sampling.micro_batch * now.sampling.accumulation, then.sampling.micro_batch * then.sampling.accumulation);
  std::string changed;
  for (const auto& [key, value] : now.settings) {
    const auto before = then.settings.find(key);
    if (before == then.settings.end() || before->second == value) continue;
    changed += fmt::format("{}{}: {} (was {})", changed.empty() ? "" : ", ", key, value, before->second);
  }
  if (!changed.empty()) {
    log::warning("{} was made with other settings, so this run does not go on as that one would have: {}", checkpoint,
                 changed);
  }
  if (now.sampling.micro_batch != then.sampling.micro_batch) {
    log::warning(
        "{} was made with micro-batches of {} rows, this run has {}: gradients are summed in other parts, so results "
        "agree to rounding, not bit for bit",
        checkpoint, then.sampling.micro_batch, now.sampling.micro_batch);
  }
  if (now.order != then.order && now.sampling.accumulation > 1) {
    log::warning(
        "{} was made with order: {}, this run has {}: gradients are summed in another order, so results agree "
        "to rounding, not bit for bit",
        checkpoint, order_name(then.order), order_name(now.order));
  }
  if (now.compute_threads != then.compute_threads) {
    log::warning("{} was made with {} compute threads, this run has {}: results agree to rounding, not bit for bit",
                 checkpoint, then.compute_threads, now.compute_threads);
  }
}

}  // namespace protrain
