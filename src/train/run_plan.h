// Decides everything about a run before it allocates anything: plan, chunks, layout.
#pragma once
#include <string>
#include <vector>

#include "train/ladder.h"
#include "train/measured_model.h"
#include "plan/budget.h"

namespace protrain {

struct RunPlan {
  RunShape shape;
  Profile profile;
  Plan plan;
  std::vector<Chunk> chunks;
  Layout layout;
  MemoryLimits limits;
  std::string reason;  // one line: where the plan comes from and what it does
};

// Error(kDoesNotFit) with the bytes needed and available, by tier, and the nearest change that fits; Error(kConfig)
// for knobs that this model or run cannot take.
RunPlan choose_plan(Files&, const TrainConfig&, const ModelSource&, const MeasuredModel&);

// What the device holds beside the arena now that all arenas are there (the driver's tables of pinned memory are part
// of it); 0 on the CPU. Error(kDoesNotFit) when the user's limit is passed by it.
Bytes settled_outside(const RunPlan&, const Device&);

MemoryLimits memory_limits(const TrainConfig&, const MeasuredModel&);
// Weights, gradients, optimizer state: what the model would take with all of it in one place.
Bytes state_bytes(const ModelSpec&, DType compute);

}  // namespace protrain
