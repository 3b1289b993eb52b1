// layout(): every byte that a plan needs, with its address. The lifetimes come from expanding the plan's graphs, so the
// peak is that of the very tasks that will run. Pure; thread-safe.
#pragma once
#include "schedule/schedule.h"

namespace protrain {

// validate()s first. Covers every graph and every planned shape. Regions, lives and live_bound are the same whatever
// the effort.
Layout layout(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Profile&, const Plan&,
              PackEffort = PackEffort::kThorough);

}  // namespace protrain
