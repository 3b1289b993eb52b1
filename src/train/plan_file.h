// output_dir/plan.json: the plan, its layout, and beside them "memory": by tier what is planned, by tag; limits (the
// device's: of its arena and what lies outside of it together); what lies outside of the arenas; and "prediction": step
// time, lanes, what binds, the runner-up, what was searched. PlanKnobs reads the knobs back and leaves the rest. Pure;
// thread-safe.
#pragma once
#include <string>
#include <vector>

#include "train/run_plan.h"

namespace protrain {

std::string plan_file(const RunPlan&, const ModelSpec&);
// Tokens of a full step (padding counted) by its predicted time.
double predicted_tokens_per_second(const RunPlan&);
// In lines for the log: what a step is expected to take and why; totals by tier and tag, and the host's sum.
std::vector<std::string> prediction_lines(const RunPlan&);
std::vector<std::string> memory_lines(const RunPlan&, const ModelSpec&);

}  // namespace protrain
