// A plan as a file. Pure; thread-safe.
#pragma once
#include <string>

#include "plan/plan.h"

namespace protrain {

// {"schema", every knob of Plan under its own name, "predicted_device_bytes", "layout": [{"tier", "region", "index",
// "offset", "bytes", "whole_run", "at_peak"}, ...]}. "activation": a name a block; "place": a name a chunk; "order":
// "micro_batch" | "layer"; "state_tier": "pageable" | "pinned". The layout is for the reader: parse_plan leaves it.
std::string plan_json(const Plan&, const Layout&);

// What plan_json() writes, or written by hand:
// - activation as one name for all layers, a list with an entry a block or a layer, or instead of it the counts
//   "n_swap", "n_keep_light", "n_recompute", "n_recompute_host", "swap_interval" (see interleave());
// - place as a list with an entry a chunk, or {"n_resident": body chunks, "embedding": name, "head": name};
// - chunk_bytes as a number or "64MiB".
// What is not given: all body chunks persistent; resident where that can be; twice the slots that are needed; every
// layer keep; the rest as Plan has it. Does not validate() the whole. Error(kConfig) naming file, key, value and what
// would be right; unknown keys are refused with the nearest known one.
Plan parse_plan(const std::string& json, const std::string& file, const ModelSpec&, DType compute);

std::string_view tier_name(Tier);
std::string_view activation_name(Activation);
std::string_view place_name(UpdatePlace);
std::string_view order_name(Order);

}  // namespace protrain
