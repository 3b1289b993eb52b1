// From a measured model to the plan of its run: what tasks cost here, the micro-batch where it is left open, the plan.
#pragma once
#include <optional>

#include "train/run_plan.h"

namespace protrain {

// per_device_train_batch_size: auto tries the divisors of train_batch_size, smallest first, until larger ones do not
// fit or are no faster, and sets the micro-batch and accumulation of the fastest in config, data and measured model.
// The samples of an update stay the same. Warns of idle_limits(). Errors as choose_plan().
RunPlan plan_run(Files&, TrainConfig&, const ModelSource&, DataSources&, MeasuredModel&, std::optional<Order> order);

}  // namespace protrain
