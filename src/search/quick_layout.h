// A layout for plans that are only looked at: layout()'s regions and lives, addresses from a few passes of a simple
// rule instead of a long search. Internal to search/. Pure.
#pragma once
#include "plan/plan.h"

namespace protrain {

// Fits wherever regions that live together may not overlap, so the plan can be simulated with it. Its bytes may be a
// little above or below layout()'s; what a search returns is laid out by layout().
Layout quick_layout(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Profile&, const Plan&);

}  // namespace protrain
