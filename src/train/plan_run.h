// From a measured model to the plan of its run: what tasks cost here, the micro-batch where it is left open, the plan.
#pragma once
#include <optional>

#include "train/run_plan.h"
#include "train/run_state.h"

namespace protrain {

// per_device_train_batch_size: auto tries the divisors of train_batch_size, smallest first, until larger ones do not
// fit or are no faster, and sets the micro-batch and accumulation of the fastest in config, data and measured model.
// The samples of an update stay the same. `then`: of the checkpoint to go on from; its order of accumulation is taken,
// and its micro-batch where that fits, whatever is fastest now: a run that goes on gives the bits that it would have
// given. Warns of idle_limits(). Errors as choose_plan().
RunPlan plan_run(Files&, TrainConfig&, const ModelSource&, DataSources&, MeasuredModel&,
                 const std::optional<RunState>& then);

}  // namespace protrain
