// A profile for people. Pure; thread-safe.
#pragma once
#include <string>
#include <vector>

#include "arch/spec.h"
#include "schedule/rates_json.h"

namespace protrain {

// Tables: calls with what they take and reach, links and updates, how lanes slow each other down.
std::vector<std::string> profile_lines(const StoredProfile&, const ModelSpec&);

// Model FLOPs of a call, causal attention over whole rows; what is computed again is not counted. 0 for an embedding.
double call_flops(const ModelSpec&, const CallKey&);

}  // namespace protrain
