// The shape of a run from its configuration, with as much of the data as there is. One thread.
#pragma once
#include <string>
#include <vector>

#include "arch/spec.h"
#include "base/files.h"
#include "plan/plan.h"
#include "train/config.h"

namespace protrain {

struct PlannedShape {
  RunShape run;
  std::vector<std::string> notes;  // what was presumed, a line each
};

// The run's own shapes where all its data is prepared; else those that cutoff_len and the batch sizes say, the most
// that the run can turn out to be. Files are read, never prepared. per_device_train_batch_size: auto becomes one row a
// micro-batch. Error(kConfig) for a cutoff_len that the model cannot take.
PlannedShape planned_shape(Files&, const TrainConfig&, const ModelSpec&, DType compute);

// The same samples an update in micro-batches of so many rows. InternalError unless `rows` divides them.
RunShape with_micro_batch(RunShape, std::int64_t rows);

}  // namespace protrain
