// The loads of kCpu chunks' weights in a schedule: which tasks they are, and a check that every block finds its own.
// Internal to runtime/. Pure; thread-safe.
//
// Edges order what touches equal bytes (race()), versions tell whether a copy is of the present weight (ChunkStore);
// that a slot holds the chunk that a block is about to read is a matter of the total order alone.
#pragma once
#include <string>

#include "plan/plan.h"
#include "schedule/schedule.h"

namespace protrain {

bool is_weight_load(const Task&);  // kCopy of a chunk's weight into its slot or home

// Empty if each block's weights have been loaded, after their update, into a slot that no other chunk has taken since.
// `step`: the shape that was expanded. Homes are current at its start, but for pending chunks.
std::string missing_load(const Schedule&, const StepShape& step, const ModelSpec&, const std::vector<Chunk>&,
                         const Plan&);

}  // namespace protrain
