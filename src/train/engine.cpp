#include "train/engine.h"

#include <algorithm>

#include "model/model.h"
#include "tensor/tensor.h"

namespace protrain {

namespace {

std::int64_t longest_row(const RunShape& shape) {
  std::int64_t longest = 0;
  for (const BatchShape& batch : shape.train_shapes) longest = std::max(longest, batch.row_tokens);
  for (const BatchShape& batch : shape.eval_shapes) longest = std::max(longest, batch.row_tokens);
  return longest;
}

}  // namespace

Engine::Engine(const TrainConfig& config, const ModelSource& model, const RunPlan& run, Device& device)
    : pool_(run.compute_threads) {
  set_up_torch({.compute_threads = run.compute_threads, .deterministic = config.deterministic});
  std::byte* const device_arena = device.arena(Tier::kDevice, run.layout.bytes(Tier::kDevice));
  std::byte* const pinned_arena = device.arena(Tier::kPinned, run.layout.bytes(Tier::kPinned));
  kernels_ = device.kind() == DeviceKind::kCuda ? make_cuda_kernels() : make_cpu_kernels(pool_);
  store_ = std::make_unique<ChunkStore>(model.spec, run.chunks, run.layout, run.shape, device, device_arena);
  std::vector<std::unique_ptr<Block>> blocks = make_blocks(model.architecture, model.spec,
                                                           {.compute = run.shape.compute,
                                                            .device = device.kind(),
                                                            .deterministic = config.deterministic,
                                                            .positions = longest_row(run.shape)});
  const AdamWOptions adam = {.beta1 = config.adam_beta1, .beta2 = config.adam_beta2, .epsilon = config.adam_epsilon};
  runner_ = std::make_unique<StepRunner>(*store_, run.chunks, run.shape, run.plan, run.layout, device,
                                         std::move(blocks), *kernels_, adam, pinned_arena);
}

}  // namespace protrain
