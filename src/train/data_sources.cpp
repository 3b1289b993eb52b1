#include "train/data_sources.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "train/prepare_data.h"

namespace protrain {
namespace {

constexpr std::int64_t kTokensLookedAt = 1 << 16;

// Whether the data is plain text: in its first tokens, every one that can be a target is supervised.
bool all_supervised(const TokenFile& file) {
  const std::int64_t count = std::min(kTokensLookedAt, file.tokens());
  std::vector<std::uint8_t> supervised(static_cast<std::size_t>(count));
  file.read(0, count, nullptr, supervised.data());
  for (std::int64_t sample = 0; sample < file.samples() && file.sample_start(sample) < count; ++sample) {
    supervised[static_cast<std::size_t>(file.sample_start(sample))] = 1;  // never a target
  }
  return std::ranges::all_of(supervised, [](std::uint8_t bit) { return bit != 0; });
}

void check_end_token(const TrainConfig& config, const ModelSpec& spec) {
  if (config.end_token < spec.vocabulary) return;
  fail(ExitCode::kConfig, "end_token ({}): {} is no token of the model: its vocabulary has {}",
       config.given.at("end_token"), config.end_token, spec.vocabulary);
}

void warn_of_end_token(const TrainConfig& config, const DataSources& data) {
  if (config.end_token < 0 || !config.is_given("end_token")) return;
  const auto cuts = [](const std::string& file) { return file.ends_with(".bin"); };
  if (cuts(data.train_file) || cuts(data.eval_file)) return;
  log::warning("end_token ({}): {} has no effect: it ends samples in .bin files alone", config.given.at("end_token"),
               config.end_token);
}

std::shared_ptr<const TokenFile> open_checked(Files& files, const TrainConfig& config, const ModelSpec& spec,
                                              std::string_view key, const std::string& path) {
  std::shared_ptr<const TokenFile> tokens = open_token_file(files, path, config.end_token);
  if (tokens->samples() == 0 || tokens->tokens() == 0) fail(ExitCode::kData, "{}: {} holds no sample", key, path);
  check_vocabulary(*tokens, spec.vocabulary, path);  // first: it says which token is wrong
  tokens->check_digest();
  return tokens;
}

std::shared_ptr<const TokenFile> open_tokens(Files& files, const TrainConfig& config, const ModelSpec& spec,
                                             const std::vector<std::string>& patterns, std::string_view key,
                                             std::string& path) {
  const PreparedFile prepared = prepared_file(files, config, patterns, key, spec.vocabulary);
  path = prepared.path.string();
  if (!prepared.found_in_cache) return open_checked(files, config, spec, key, path);
  try {
    return open_checked(files, config, spec, key, path);
  } catch (const Error& error) {
    log::warning("{}: the cached file is damaged and is made anew ({})", key, error.what());
  }
  path = prepared_file(files, config, patterns, key, spec.vocabulary, Cache::kRenew).path.string();
  return open_checked(files, config, spec, key, path);
}

std::unique_ptr<BatchSource> open_source(const std::shared_ptr<const TokenFile>& tokens, const SamplingOptions& options,
                                         const std::string& path, std::string_view key) {
  std::unique_ptr<BatchSource> source = make_batch_source(tokens, options, fmt::format("{}: {}", key, path));
  if (source->dropped_samples() > 0) {
    log::warning("{}: {} of {} samples have no supervised token within cutoff_len {} and are left out", key,
                 source->dropped_samples(), tokens->samples(), options.cutoff_len);
  }
  return source;
}

}  // namespace

std::int64_t row_length(const TrainConfig& config, const ModelSpec& spec) {
  if (spec.rotary_positions > 0 && config.cutoff_len > spec.rotary_positions) {
    log::warning(
        "cutoff_len: {} is more than the {} positions that the model was made for (max_position_embeddings); tokens "
        "behind them in a sample are at rotary positions that it has never seen",
        config.cutoff_len, spec.rotary_positions);
  }
  if (spec.max_positions == 0 || config.cutoff_len <= spec.max_positions) return config.cutoff_len;
  if (config.is_given("cutoff_len")) {
    fail(ExitCode::kConfig, "cutoff_len ({}): {} is more than the model's {} positions", config.given.at("cutoff_len"),
         config.cutoff_len, spec.max_positions);
  }
  return spec.max_positions;
}

DataSources open_data(Files& files, const TrainConfig& config, const ModelSpec& spec) {
  check_end_token(config, spec);
  const bool automatic = config.per_device_train_batch_size == 0;
  DataSources data;
  data.train_tokens = open_tokens(files, config, spec, config.train_file, "train_file", data.train_file);
  data.sampling = {
      .cutoff_len = row_length(config, spec),
      .split_long =
          config.split_long == Switch::kAuto ? all_supervised(*data.train_tokens) : config.split_long == Switch::kTrue,
      .packing = config.packing,
      .shuffle = config.shuffle,
      .seed = static_cast<std::uint64_t>(config.seed),
      .micro_batch = automatic ? 1 : config.per_device_train_batch_size,
      .accumulation = automatic ? config.train_batch_size : config.gradient_accumulation_steps,
  };
  data.train = open_source(data.train_tokens, data.sampling, data.train_file, "train_file");
  if (config.validation_file.empty()) {
    warn_of_end_token(config, data);
    return data;
  }

  data.eval_tokens = open_tokens(files, config, spec, config.validation_file, "validation_file", data.eval_file);
  SamplingOptions options = data.sampling;
  options.shuffle = false;
  options.micro_batch = config.per_device_eval_batch_size;
  options.accumulation = 1;
  data.eval = open_source(data.eval_tokens, options, data.eval_file, "validation_file");
  warn_of_end_token(config, data);
  return data;
}

void set_micro_batch(DataSources& data, std::int64_t rows, std::int64_t accumulation) {
  data.sampling.micro_batch = rows;
  data.sampling.accumulation = accumulation;
  data.train = open_source(data.train_tokens, data.sampling, data.train_file, "train_file");
}

}  // namespace protrain
