// The machine of one run, put together: arenas of exactly the plan's sizes, chunk store, update kernels, step runner,
// over the blocks that were measured. Allocates everything the run will use. One thread.
#pragma once
#include <array>
#include <memory>

#include "base/thread_pool.h"
#include "runtime/chunk_store.h"
#include "runtime/step_runner.h"
#include "train/run_plan.h"

namespace protrain {

class Engine {
 public:
  // All of these outlive it; the blocks are taken.
  Engine(const TrainConfig&, const ModelSource&, const RunPlan&, MeasuredModel&);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  ChunkStore& store() { return *store_; }
  StepRunner& runner() { return *runner_; }
  Bytes high_water(Tier) const;  // largest end offset that was in use so far

 private:
  ThreadPool pool_;                        // of the CPU device's kernels
  std::unique_ptr<ThreadPool> host_pool_;  // of updates on the host; null without such
  std::array<std::unique_ptr<Arena>, 4> owned_arenas_;
  Arenas arenas_{};
  std::unique_ptr<UpdateKernels> kernels_, host_kernels_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<StepRunner> runner_;
};

}  // namespace protrain
