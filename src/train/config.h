// The configuration of a training run: one struct, and one table of keys that drives parsing, --help, printing and
// saving. Key names and defaults are those of transformers and LLaMA-Factory. Plain values; functions are thread-safe.
//
// config*.cpp see base, yaml-cpp and nlohmann only, so that the fuzzer can build them alone.
#pragma once
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/units.h"

namespace protrain {

inline constexpr std::string_view kCommandLine = "command line";

enum class Switch : std::uint8_t { kFalse, kTrue, kAuto };

// A number of bytes written as "64MiB", "24GB" or "4096".
struct ByteSize {
  Bytes bytes = 0;
  bool operator==(const ByteSize&) const = default;
};

struct TrainConfig {
  // Model
  std::string model_name_or_path;
  std::string config_name;
  std::string tokenizer_name;
  std::optional<double> attention_dropout, residual_dropout, embedding_dropout;  // none: as config.json says
  // Data
  std::vector<std::string> train_file;
  std::vector<std::string> validation_file;
  std::string form = "auto";
  std::int64_t cutoff_len = 2048;
  bool packing = false;
  Switch split_long = Switch::kAuto;
  bool train_on_prompt = false;
  bool mask_history = false;
  bool add_eos = true;
  Switch append_bos = Switch::kAuto;
  bool skip_bad = false;
  std::int64_t max_samples = 0;
  std::int64_t end_token = -1;
  std::string dataset_prepared_path;
  bool shuffle = true;
  std::int64_t seed = 42;
  // Batch and length of the run
  std::int64_t per_device_train_batch_size = 8;  // 0: auto, a divisor of train_batch_size
  std::int64_t per_device_eval_batch_size = 8;
  std::int64_t gradient_accumulation_steps = 1;
  std::int64_t train_batch_size = 0;  // 0: not said
  double num_train_epochs = 3;
  std::int64_t max_steps = -1;
  // Optimizer and learning rate
  double learning_rate = 5e-5;
  std::string lr_scheduler_type = "linear";
  double warmup_steps = 0;
  double warmup_ratio = 0;
  double min_lr_ratio = 0;
  double lr_decay_steps = 0.1;
  std::string lr_decay_type = "cosine";
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1;
  std::int64_t max_nonfinite_steps = 10;
  // Evaluation, saving, logs
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::int64_t eval_steps = 0;
  bool eval_on_start = false;
  std::int64_t save_steps = 500;
  std::int64_t save_total_limit = 0;
  bool save_only_model = false;
  std::string resume_from_checkpoint;  // "", "true" or a path
  std::string export_dtype = "auto";
  std::int64_t logging_steps = 500;
  std::vector<std::string> report_to;
  std::vector<std::int64_t> trace_steps;
  std::int64_t prediction_steps = 100;
  // Machine and plan
  std::string device = "auto";
  Switch bf16 = Switch::kAuto;
  bool deterministic = false;
  std::int64_t compute_threads = 0;
  Switch recompute = Switch::kAuto;
  ByteSize chunk_bytes;  // 0: chosen
  ByteSize device_memory_limit;
  ByteSize host_memory_limit;
  std::string plan;  // "", a file, or JSON that starts with '{'

  // Keys that the user gave, and where: "train.yaml:7" or kCommandLine.
  std::map<std::string, std::string> given;
  bool is_given(const std::string& key) const { return given.contains(key); }
};

struct ConfigKey {
  using Member =
      std::variant<std::string TrainConfig::*, bool TrainConfig::*, std::int64_t TrainConfig::*, double TrainConfig::*,
                   std::optional<double> TrainConfig::*, Switch TrainConfig::*, ByteSize TrainConfig::*,
                   std::vector<std::string> TrainConfig::*, std::vector<std::int64_t> TrainConfig::*>;
  std::string_view name;
  Member member;
  std::string_view help;
  std::string_view choices = {};  // "a|b|c" for strings and lists of strings; empty = anything
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool below_max = false;       // max itself is refused
  std::string_view alias = {};  // another name for the same key
  std::string_view zero = {};   // an integer: the word that stands for 0, which may then lie below `min`
};
std::span<const ConfigKey> config_keys();

// Reads the file, then `overrides` ("--key value", "--key=value", "--flag"; hyphens or underscores) on top, then
// checks. Error(kConfig): "FILE:LINE: ..." naming the key, the value and what would be right. A null value means the
// default.
TrainConfig load_config(const std::filesystem::path& file, std::span<const std::string> overrides);
TrainConfig parse_config(const std::string& yaml, const std::string& file, std::span<const std::string> overrides);
// What no single key can tell: required and contradictory keys. parse_config does it last.
void check_config(const TrainConfig&, const std::string& file);

// YAML of every key, in the table's order; parse_config reads it back to the same values.
std::string print_config(const TrainConfig&);
// One key's value as print_config writes it.
std::string print_value(const TrainConfig&, const ConfigKey&);
// Every key with its type, default and meaning.
std::string describe_keys();

}  // namespace protrain
