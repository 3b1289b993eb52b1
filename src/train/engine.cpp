#include "train/engine.h"

#include <algorithm>
#include <ranges>

#include "base/error.h"

namespace protrain {

Engine::Engine(const TrainConfig& config, const ModelSource& model, const RunPlan& run, MeasuredModel& measured)
    : spec_(model.spec),
      measured_(measured),
      adam_{.beta1 = config.adam_beta1, .beta2 = config.adam_beta2, .epsilon = config.adam_epsilon} {
  Device& device = *measured.device;
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
    const Bytes bytes = run.layout.bytes(tier);
    if (bytes == 0) continue;
    auto& arena = owned_arenas_[static_cast<std::size_t>(tier)];
    arena = std::make_unique<Arena>(device, tier, bytes);
    arenas_[static_cast<std::size_t>(tier)] = arena.get();
  }
  make_runner(run, std::move(measured.blocks));
  if (run.layout.contains(Region::kTables, 0)) {
    measured.tables->place(store_->at(run.layout.find(Region::kTables)), *device.stream("tables"));
  }
  if (run.layout.contains(Region::kLibrary, 0)) {
    const Range library = run.layout.find(Region::kLibrary);
    measured.traces->place_library(store_->at(library), library.bytes);
  }
  measured.traces->set_mode(TraceBook::Mode::kReplay);
}

void Engine::make_runner(const RunPlan& run, std::vector<std::unique_ptr<Block>> blocks) {
  store_ = std::make_unique<ChunkStore>(spec_, run.chunks, run.layout, run.shape, run.plan, *measured_.device, arenas_);
  runner_ = std::make_unique<StepRunner>(*store_, run.chunks, run.shape, run.profile, run.plan, run.layout,
                                         *measured_.device, std::move(blocks), *measured_.kernels.device,
                                         measured_.kernels.host.get(), adam_, arenas_);
}

void Engine::adopt(const RunPlan& now, const RunPlan& next) {
  PROTRAIN_CHECK(same_homes(now, next), "a run's state has moved");
  runner_->drain();
  auto blocks = runner_->release_blocks();
  runner_.reset();
  store_.reset();
  for (Arena* arena : arenas_) {
    if (arena != nullptr) arena->restart_high_water();
  }
  make_runner(next, std::move(blocks));
}

bool same_homes(const RunPlan& now, const RunPlan& next) {
  if (now.chunks.size() != next.chunks.size() || now.plan.place != next.plan.place) return false;
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
    if (next.layout.bytes(tier) > now.layout.bytes(tier)) return false;
  }
  const auto whole_run = [](const Layout::Entry& entry) { return entry.whole_run; };
  return std::ranges::equal(now.layout.entries | std::views::filter(whole_run),
                            next.layout.entries | std::views::filter(whole_run),
                            [](const Layout::Entry& a, const Layout::Entry& b) {
                              return a.region == b.region && a.index == b.index && a.range == b.range;
                            });
}

Engine::~Engine() = default;

Bytes Engine::high_water(Tier tier) const {
  const Arena* arena = arenas_[static_cast<std::size_t>(tier)];
  return arena == nullptr ? 0 : arena->high_water();
}

}  // namespace protrain
