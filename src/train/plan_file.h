// output_dir/plan.json: the plan, its layout, and beside them "memory": by tier what is planned, by tag; limits; what
// lies outside of the arenas. PlanKnobs reads the knobs back and leaves the rest. Pure; thread-safe.
#pragma once
#include <string>
#include <vector>

#include "train/run_plan.h"

namespace protrain {

std::string plan_file(const RunPlan&, const ModelSpec&);
// The same in lines for the log: totals by tier and tag, and the host's sum.
std::vector<std::string> memory_lines(const RunPlan&, const ModelSpec&);

}  // namespace protrain
