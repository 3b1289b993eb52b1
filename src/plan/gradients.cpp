#include "plan/gradients.h"

#include "base/error.h"

namespace protrain {

GradientRegions gradient_regions(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape,
                                 const Plan& plan, Id chunk) {
  const Chunk& about = chunks.at(chunk);
  const bool sums = accumulates(spec, shape, about.parameters.front());
  const auto part = [&](Part part) { return RegionId{Region::kState, chunk * kParts + static_cast<Id>(part)}; };
  if (plan.place.at(chunk) == UpdatePlace::kResident) {
    return {part(sums ? Part::kAccumulator : Part::kGradient), part(Part::kGradient)};
  }
  // A slot is given on as soon as the gradient has left it: a sum that waits for the next micro-batch cannot stay
  // there.
  const bool waits = !sums && shape.accumulation > 1 && plan.order == Order::kMicroBatch;
  RegionId wire{Region::kWireGradient, chunk};
  if (about.kind == BlockKind::kLayer && !waits) {
    wire = {Region::kGradientSlot, slots(chunks, plan).gradient.at(chunk)};
    PROTRAIN_CHECK(wire.index >= 0, "chunk {} has no gradient slot", chunk);
  }
  return {sums ? RegionId{Region::kAccumulator, chunk} : wire, wire};
}

}  // namespace protrain
