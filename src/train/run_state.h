// What a checkpoint says about the run that made it, beside the model's state, and whether this run may go on from it.
// Pure functions; thread-safe.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/training_checkpoint.h"
#include "plan/plan.h"
#include "train/data_sources.h"

namespace protrain {

struct RunState {
  SamplingOptions sampling;
  int compute_threads = 1;
  Order order = Order::kMicroBatch;
  std::map<std::string, std::string> settings;  // that shape updates, by key, as print_value writes them
  double epoch = 0;
  std::int64_t tokens_seen = 0;  // real ones, since the first step
  std::int64_t nonfinite_in_row = 0;
  std::int64_t evaluated_step = -1;  // last one evaluated: a stop may leave an evaluation owed
};

// compute_dtype and the keys of optimizer, learning rate and length.
std::map<std::string, std::string> update_settings(const TrainConfig&, DType compute);

std::string run_state_json(const RunState&);
RunState parse_run_state(const std::string& json, const std::string& file);  // Error(kFiles)

// What the first readable one of these checkpoints says; none of no checkpoint.
std::optional<RunState> stored_run(Files&, const std::vector<std::filesystem::path>& checkpoints);

// Refuses (Error(kConfig), Error(kData)) when the data or the order of samples would differ: resume would repeat and
// leave out samples. The micro-batch may change where micro-batch x accumulation stays. What changes bits is warned of,
// changed settings in one line.
void check_resume(const RunState& now, std::uint64_t data_now, const RunState& then, std::uint64_t data_then,
                  const std::string& checkpoint);

}  // namespace protrain
