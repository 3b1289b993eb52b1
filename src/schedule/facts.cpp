#include "schedule/facts.h"

#include <algorithm>

#include "base/error.h"

namespace protrain {

Facts::Facts(const ModelSpec& spec_in, const std::vector<Chunk>& chunks_in, const RunShape& shape_in,
             const Profile& profile_in, const Plan& plan_in)
    : spec(spec_in),
      chunks(chunks_in),
      shape(shape_in),
      profile(profile_in),
      plan(plan_in),
      blocks(static_cast<Id>(spec.blocks.size())),
      slots(protrain::slots(chunks, plan)),
      uses(chunk_uses(spec, chunks)),
      first_block(chunks.size(), -1) {
  for (Id block = blocks - 1; block >= 0; --block) {
    for (const ChunkUse& use : uses[block]) first_block[use.chunk] = block;
  }
  for (Id chunk = 0; chunk < static_cast<Id>(chunks.size()); ++chunk) {
    gradients.push_back(gradient_regions(spec, chunks, shape, plan, slots, chunk));
  }
  for (Id block = 0; block < blocks; ++block) {
    Id first = 0;
    while (spec.blocks[first].trace != spec.blocks[block].trace || spec.blocks[first].kind != spec.blocks[block].kind ||
           mode(first).light != mode(block).light) {
      ++first;
    }
    workspace_block.push_back(first);
  }
}

const ActivationTraits& Facts::mode(Id block) const {
  return traits(spec.blocks[block].kind == BlockKind::kLayer ? plan.activation.at(block) : Activation::kKeep);
}

const CallMemory& Facts::memory(Id block, Pass pass, const BatchShape& batch, bool training) const {
  return profile.find({spec.blocks[block].trace, pass, pass != Pass::kForward && mode(block).light, batch, training});
}

Id Facts::activation_index(Id block, Id micro_batch) const {
  return plan.order == Order::kLayer ? micro_batch * blocks + block : block;
}

Id Facts::evaluation_index(Id block, Id micro_batch) const {
  const bool layer = plan.order == Order::kLayer;
  const Id training = layer ? static_cast<Id>(shape.accumulation) * blocks : blocks;
  return training + (layer ? 2 * micro_batch : 0) + block % 2;
}

bool Facts::any_on_host() const {
  return std::find(plan.place.begin(), plan.place.end(), UpdatePlace::kCpu) != plan.place.end();
}

}  // namespace protrain
