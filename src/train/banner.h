// The lines that a run starts with. Pure.
#pragma once
#include <string>
#include <vector>

#include "train/run_plan.h"

namespace protrain {

std::vector<std::string> banner(const TrainConfig&, const ModelSource&, const DataSources&, const MeasuredModel&,
                                const RunPlan&, std::int64_t total_steps);

}  // namespace protrain
