#include "train/engine.h"

#include <algorithm>

namespace protrain {

Engine::Engine(const TrainConfig& config, const ModelSource& model, const RunPlan& run, MeasuredModel& measured)
    : pool_(measured.compute_threads) {
  Device& device = *measured.device;
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
    const Bytes bytes = run.layout.bytes(tier);
    if (bytes == 0) continue;
    auto& arena = owned_arenas_[static_cast<std::size_t>(tier)];
    arena = std::make_unique<Arena>(device, tier, bytes);
    arenas_[static_cast<std::size_t>(tier)] = arena.get();
  }
  kernels_ = device.kind() == DeviceKind::kCuda ? make_cuda_kernels() : make_cpu_kernels(pool_);
  if (std::ranges::count(run.plan.place, UpdatePlace::kCpu) > 0) {
    const bool on_host = device.kind() == DeviceKind::kCpu;  // then blocks and updates share the same cores
    host_pool_ =
        std::make_unique<ThreadPool>(on_host ? measured.compute_threads : background_cores(), Placement::kByNode);
    host_kernels_ = make_cpu_kernels(*host_pool_);
  }
  store_ = std::make_unique<ChunkStore>(model.spec, run.chunks, run.layout, run.shape, run.plan, device, arenas_);
  if (run.layout.contains(Region::kTables, 0)) {
    measured.tables->place(store_->at(run.layout.find(Region::kTables)), *device.stream("tables"));
  }
  if (run.layout.contains(Region::kLibrary, 0)) {
    const Range library = run.layout.find(Region::kLibrary);
    measured.traces->place_library(store_->at(library), library.bytes);
  }
  measured.traces->set_mode(TraceBook::Mode::kReplay);
  const AdamWOptions adam = {.beta1 = config.adam_beta1, .beta2 = config.adam_beta2, .epsilon = config.adam_epsilon};
  runner_ = std::make_unique<StepRunner>(*store_, run.chunks, run.shape, run.profile, run.plan, run.layout, device,
                                         std::move(measured.blocks), *kernels_, host_kernels_.get(), adam, arenas_);
}

Engine::~Engine() = default;

Bytes Engine::high_water(Tier tier) const {
  const Arena* arena = arenas_[static_cast<std::size_t>(tier)];
  return arena == nullptr ? 0 : arena->high_water();
}

}  // namespace protrain
