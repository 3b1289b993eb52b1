// Decides everything about a run before it allocates anything: device, compute dtype, plan, chunks, layout. Here the
// only plans are "everything on the device" with activations kept or recomputed.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "plan/plan.h"
#include "train/config.h"
#include "train/data_sources.h"
#include "train/model_source.h"

namespace protrain {

struct RunPlan {
  int compute_threads = 1;
  RunShape shape;
  Plan plan;
  std::vector<Chunk> chunks;
  Layout layout;
  Bytes activation_bytes = 0;  // estimate: what LibTorch allocates beside the arena
};

// Error(kConfig) for a device that is not there.
std::unique_ptr<Device> open_device(const TrainConfig&);
// bf16: auto: on CUDA, and on CPUs that multiply bf16 in hardware.
DType compute_dtype(const TrainConfig&, DeviceKind);
bool cpu_multiplies_bf16();

// Error(kDoesNotFit) with the bytes needed and available, by tier, and the nearest change that fits.
RunPlan choose_plan(const TrainConfig&, const ModelSource&, const DataSources&, const Device&);

// Estimate of what a layer keeps for its backward, and of the head's working memory, for T tokens.
Bytes saved_bytes(const Architecture&, std::int64_t tokens, DType compute);
Bytes head_bytes(const Architecture&, std::int64_t tokens, DType compute);

}  // namespace protrain
