#include "train/planned_shape.h"

#include <algorithm>

#include "base/error.h"
#include "train/data_sources.h"
#include "train/prepare_data.h"

namespace protrain {
namespace {

// Samples of a packed row whose data is not known: their count is a few bytes of a batch and nothing else.
constexpr std::int64_t kTokensOfASample = 128;

// Empty where the run's own data says the shapes; else why it does not.
std::string shapes_of_data(Files& files, const TrainConfig& config, const ModelSpec& spec, RunShape& run) {
  TrainConfig own = config;  // its data as it is prepared, so that nothing is
  try {
    const auto find = [&](std::vector<std::string>& patterns, std::string_view key) {
      const auto prepared = find_prepared(files, config, patterns, key, spec.vocabulary);
      if (prepared) patterns = {prepared->string()};
      return prepared.has_value();
    };
    constexpr const char* kNotYet = "{} is not prepared yet, which protrain profile and train do";
    if (!find(own.train_file, "train_file")) return fmt::format(kNotYet, "train_file");
    if (!own.validation_file.empty() && !find(own.validation_file, "validation_file")) {
      return fmt::format(kNotYet, "validation_file");
    }
    const DataSources data = open_data(files, own, spec);
    run.train_shapes = data.train->shapes();
    if (data.eval) run.eval_shapes = data.eval->shapes();
    return {};
  } catch (const Error& error) {
    if (error.code() != ExitCode::kData) throw;
    return error.what();
  }
}

BatchShape shape_of(const TrainConfig& config, std::int64_t rows, std::int64_t row_tokens) {
  BatchShape shape;
  shape.rows = rows;
  shape.row_tokens = row_tokens;
  shape.packed = config.packing;
  shape.max_samples = config.packing ? rows * (row_tokens / kTokensOfASample + 2) : rows;
  return shape;
}

}  // namespace

PlannedShape planned_shape(Files& files, const TrainConfig& config, const ModelSpec& spec, DType compute) {
  TrainConfig own = config;
  if (own.per_device_train_batch_size == 0) {
    own.per_device_train_batch_size = 1;
    own.gradient_accumulation_steps = own.train_batch_size;
  }
  PlannedShape planned;
  planned.run.compute = compute;
  planned.run.accumulation = own.gradient_accumulation_steps;
  const std::string why = shapes_of_data(files, own, spec, planned.run);
  if (why.empty()) return planned;
  const std::int64_t tokens = row_length(own, spec);
  planned.run.train_shapes = {shape_of(own, own.per_device_train_batch_size, tokens)};
  if (!own.validation_file.empty()) {
    planned.run.eval_shapes = {shape_of(own, own.per_device_eval_batch_size, tokens)};
  }
  planned.notes.push_back(
      fmt::format("rows of {} tokens (cutoff_len) are presumed, the data may need less: {}", tokens, why));
  return planned;
}

RunShape with_micro_batch(RunShape shape, std::int64_t rows) {
  for (BatchShape& batch : shape.train_shapes) {
    const std::int64_t samples = batch.rows * shape.accumulation;
    PROTRAIN_CHECK(rows > 0 && samples % rows == 0, "{} samples in micro-batches of {}", samples, rows);
    batch.max_samples = ceil_div(batch.max_samples * rows, batch.rows);
  }
  const std::int64_t before = shape.train_shapes.front().rows;
  shape.accumulation = shape.accumulation * before / rows;
  for (BatchShape& batch : shape.train_shapes) batch.rows = rows;
  return shape;
}

}  // namespace protrain
