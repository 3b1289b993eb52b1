// The machine of one run, put together: arenas, chunk store, blocks, update kernels, step runner. Allocates everything
// the run will use. One thread.
#pragma once
#include <memory>

#include "base/thread_pool.h"
#include "runtime/chunk_store.h"
#include "runtime/step_runner.h"
#include "train/run_plan.h"

namespace protrain {

class Engine {
 public:
  // All of these outlive it.
  Engine(const TrainConfig&, const ModelSource&, const RunPlan&, Device&);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  ChunkStore& store() { return *store_; }
  StepRunner& runner() { return *runner_; }

 private:
  ThreadPool pool_;
  std::unique_ptr<UpdateKernels> kernels_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<StepRunner> runner_;
};

}  // namespace protrain
