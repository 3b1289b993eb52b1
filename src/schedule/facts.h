// What all graphs of one plan share, computed once. Internal to schedule/.
#pragma once
#include <vector>

#include "schedule/schedule.h"

namespace protrain {

// All references outlive it.
struct Facts {
  Facts(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Profile&, const Plan&);

  // The row of its mode; of embedding and head that of kKeep.
  const ActivationTraits& mode(Id block) const;
  // What a call of the block needs. `light` follows from mode and pass.
  const CallMemory& memory(Id block, Pass, const BatchShape&, bool training) const;
  // Of kBlockInput and the like: one micro-batch's regions serve all others in kMicroBatch order.
  Id activation_index(Id block, Id micro_batch) const;
  // kBlockInput of an evaluation: nothing outlives its use without a backward, two do.
  Id evaluation_index(Id block, Id micro_batch) const;
  Id workspace_index(Id block, int pass) const { return workspace_block[block] * 4 + pass; }
  Bytes element(Part part) const { return size_of(part_dtype(part, shape.compute)); }
  bool on_host(Id chunk) const { return plan.place[chunk] == UpdatePlace::kCpu; }
  bool any_on_host() const;

  const ModelSpec& spec;
  const std::vector<Chunk>& chunks;
  const RunShape& shape;
  const Profile& profile;
  const Plan& plan;
  const Id blocks;
  const Slots slots;
  const std::vector<std::vector<ChunkUse>> uses;  // by block
  std::vector<Id> first_block;                    // by chunk: its gradient is complete after this block's backward
  std::vector<GradientRegions> gradients;         // by chunk
  std::vector<Id> workspace_block;                // by block: whose kWorkspace it takes
};

// Every region that the plan's graphs may touch, ordered, with sizes; addresses are all 0.
Layout regions(const Facts&);

}  // namespace protrain
