// Training and evaluation data of a run, checked. One thread to open; the sources are thread-safe.
#pragma once
#include <memory>

#include "arch/spec.h"
#include "data/loader.h"
#include "train/config.h"

namespace protrain {

struct DataSources {
  std::string train_file, eval_file;  // prepared
  std::shared_ptr<const TokenFile> train_tokens, eval_tokens;
  SamplingOptions sampling;  // of training
  std::unique_ptr<BatchSource> train;
  std::unique_ptr<BatchSource> eval;  // null without validation_file
};

// Of per_device_train_batch_size: auto, micro-batches of one row until set_micro_batch(). Prepares what is raw, opens,
// checks every token id against the model's vocabulary. Error(kConfig, kData), Interrupted.
DataSources open_data(Files&, const TrainConfig&, const ModelSpec&);

// cutoff_len, or what the model has if that is less and cutoff_len was not given; Error(kConfig) if it was. Warns of
// rows beyond the positions that a rotary model was made for.
std::int64_t row_length(const TrainConfig&, const ModelSpec&);

// Cuts the same updates into micro-batches of so many rows.
void set_micro_batch(DataSources&, std::int64_t rows, std::int64_t accumulation);

}  // namespace protrain
