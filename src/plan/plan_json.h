// A plan as a file, and what it means in bytes as text. Pure; thread-safe.
#pragma once
#include <string>

#include "plan/plan.h"

namespace protrain {

// {"schema", "chunk_bytes", "activation": ["keep" | "recompute", ...], "predicted_device_bytes", "layout": [{"tier",
// "region", "index", "offset", "bytes"}, ...]}. The layout is for the reader: parse_plan makes it anew.
std::string plan_json(const Plan&, const Layout&);
// Error(kConfig) naming file, key and value; unknown keys are refused.
Plan parse_plan(const std::string& json, const std::string& file);

std::string_view tier_name(Tier);
std::string_view activation_name(Activation);

// Bytes by tier and region (states by part), one line each, with the sum of each tier: for the log.
std::string layout_table(const Layout&);

}  // namespace protrain
