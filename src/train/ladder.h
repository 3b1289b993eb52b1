// The automatic choice of a plan: rungs from "everything on the device, all kept" down to "as little as can be", the
// first one that fits. Pure; thread-safe.
#pragma once
#include <optional>
#include <string>

#include "plan/plan.h"
#include "plan/budget.h"
#include "train/plan_knobs.h"

namespace protrain {

// A plan with all its bytes.
struct PlannedMemory {
  Plan plan;
  std::vector<Chunk> chunks;
  Layout layout;
};
PlannedMemory plan_memory(const ModelSpec&, const RunShape&, const Profile&, Plan);

struct LadderResult {
  PlannedMemory memory;  // the first that fits; else the one that lacks least
  Shortfall missing;
  std::string reason;  // in a few words, what the plan does and why not more of it
};
// Error(kConfig) when the user's knobs allow no plan at all. Rungs: all on the device and kept; recomputed; as many
// updates as needed on the host, the embedding's and head's last; weights streamed, as few chunks as needed; the inputs
// of blocks to the host too; fewer slots.
LadderResult climb_down(const ModelSpec&, const RunShape&, const Profile&, const PlanKnobs&, const MemoryLimits&);

// "3 of 30 body chunks streamed, updates of 12 chunks on the host, activations recompute".
std::string describe(const ModelSpec&, const PlannedMemory&);

}  // namespace protrain
