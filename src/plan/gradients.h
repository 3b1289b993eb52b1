// Which regions a chunk's gradient passes through: one answer for the layout, the schedule and the addresses that
// blocks are given. Pure; thread-safe.
#pragma once
#include "plan/plan.h"

namespace protrain {

struct RegionId {
  Region region = Region::kState;
  Id index = 0;
  bool operator==(const RegionId&) const = default;
};

// target: where the backward of its blocks writes or adds it. wire: where it lies rounded to the wire dtype, for its
// norm and its update or its way to the host. They are one region unless the gradient is summed in fp32 and then
// rounded.
//
//               summed in bf16 compute      else                  else, kept between micro-batches (fp32, kMicroBatch)
//   kResident   kAccumulator -> kGradient   kGradient             kGradient                 (both parts of kState)
//   kCpu body   kAccumulator -> slot        slot                  kWireGradient
//   kCpu edge   kAccumulator -> kWire...    kWireGradient         kWireGradient
struct GradientRegions {
  RegionId target, wire;
  bool rounds() const { return !(target == wire); }
};
GradientRegions gradient_regions(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Plan&, Id chunk);

}  // namespace protrain
