// Which chunks rotate through which slots, and where a chunk's weight and gradient lie on the device.
#include <algorithm>

#include "base/error.h"
#include "plan/plan.h"

namespace protrain {

namespace {

bool body(const Chunk& chunk) { return chunk.kind == BlockKind::kLayer; }

// By chunk: whether it streams.
std::vector<bool> streamed(const std::vector<Chunk>& chunks, const Plan& plan) {
  std::vector<bool> result;
  result.reserve(chunks.size());
  int number = 0;
  for (const Chunk& chunk : chunks) result.push_back(body(chunk) && number++ >= plan.n_persist);
  return result;
}

}  // namespace

bool accumulates(const ModelSpec& spec, const RunShape& shape, Id parameter) {
  if (shape.compute != DType::kBf16) return false;
  if (shape.accumulation > 1) return true;
  return std::any_of(spec.blocks.begin(), spec.blocks.end(), [&](const BlockSpec& block) {
    return block.kind != BlockKind::kLayer &&
           std::find(block.parameters.begin(), block.parameters.end(), parameter) != block.parameters.end();
  });
}

Slots slots(const std::vector<Chunk>& chunks, const Plan& plan) {
  PROTRAIN_CHECK(plan.place.size() == chunks.size(), "{} places for {} chunks", plan.place.size(), chunks.size());
  const std::vector<bool> streams = streamed(chunks, plan);
  Slots result;
  result.weight.assign(chunks.size(), -1);
  result.gradient.assign(chunks.size(), -1);
  Id weights = 0;
  Id gradients = 0;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (streams[chunk]) {
      PROTRAIN_CHECK(plan.n_buffer > 0, "chunk {} streams without a slot", chunk);
      result.weight[chunk] = weights++ % plan.n_buffer;
    }
    if (body(chunks[chunk]) && plan.place[chunk] == UpdatePlace::kCpu) {
      PROTRAIN_CHECK(plan.gradient_slots > 0, "the gradient of chunk {} leaves without a slot", chunk);
      result.gradient[chunk] = gradients++ % plan.gradient_slots;
    }
  }
  return result;
}

SlotNeed slot_need(const ModelSpec& spec, const std::vector<Chunk>& chunks, const Plan& plan) {
  const std::vector<bool> streams = streamed(chunks, plan);
  const auto uses = chunk_uses(spec, chunks);
  SlotNeed need;
  for (std::size_t block = 0; block < uses.size(); ++block) {
    int weights = 0;
    int gradients = 0;
    for (const ChunkUse& use : uses[block]) {
      weights += streams[use.chunk] ? 1 : 0;
      gradients += body(chunks[use.chunk]) && plan.place.at(use.chunk) == UpdatePlace::kCpu ? 1 : 0;
    }
    if (weights > need.buffer) {
      need.buffer = weights;
      need.buffer_block = static_cast<Id>(block);
    }
    if (gradients > need.gradient) {
      need.gradient = gradients;
      need.gradient_block = static_cast<Id>(block);
    }
  }
  return need;
}

RegionKey weight_region(const Plan& plan, const Slots& slots, Id chunk) {
  if (slots.weight.at(chunk) >= 0) return {Region::kWeightSlot, slots.weight[chunk]};
  if (plan.place.at(chunk) == UpdatePlace::kCpu) return {Region::kWeightHome, chunk};
  return {Region::kState, chunk * kParts + static_cast<Id>(Part::kWeight)};
}

GradientRegions gradient_regions(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape,
                                 const Plan& plan, const Slots& slots, Id chunk) {
  const bool rounds = accumulates(spec, shape, chunks.at(chunk).parameters.front());
  const RegionKey accumulator = {Region::kAccumulator, chunk};
  GradientRegions regions;
  if (plan.place.at(chunk) == UpdatePlace::kResident) {
    regions.wire = {Region::kState, chunk * kParts + static_cast<Id>(Part::kGradient)};
    regions.sum =
        rounds ? RegionKey{Region::kState, chunk * kParts + static_cast<Id>(Part::kAccumulator)} : regions.wire;
  } else {
    // A sum that waits for the next micro-batch, while other chunks are visited, cannot rotate.
    const bool waits = !rounds && body(chunks[chunk]) && shape.accumulation > 1 && plan.order == Order::kMicroBatch;
    regions.wire = waits                 ? accumulator
                   : body(chunks[chunk]) ? RegionKey{Region::kGradientSlot, slots.gradient.at(chunk)}
                                         : RegionKey{Region::kWireGradient, chunk};
    regions.sum = rounds ? accumulator : regions.wire;
  }
  regions.sum_dtype = rounds ? DType::kF32 : shape.compute;
  return regions;
}

}  // namespace protrain
