// The machine of one run, put together: arenas of exactly the plan's sizes, chunk store, step runner, over the blocks
// and update kernels that were measured. Allocates everything the run will use. One thread.
#pragma once
#include <array>
#include <memory>

#include "runtime/chunk_store.h"
#include "runtime/step_runner.h"
#include "train/run_plan.h"

namespace protrain {

class Engine {
 public:
  // All of these outlive it (plans of adopt() likewise); the blocks are taken.
  Engine(const TrainConfig&, const ModelSource&, const RunPlan&, MeasuredModel&);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Goes on with another plan, between two steps: pending updates are drained, the model's state stays where it is.
  // same_homes(now, next).
  void adopt(const RunPlan& now, const RunPlan& next);

  ChunkStore& store() { return *store_; }
  StepRunner& runner() { return *runner_; }
  Bytes high_water(Tier) const;  // largest end offset that was in use under the plan that rules

 private:
  void make_runner(const RunPlan&, std::vector<std::unique_ptr<Block>>);

  const ModelSpec& spec_;
  const MeasuredModel& measured_;
  const AdamWOptions adam_;
  std::array<std::unique_ptr<Arena>, 4> owned_arenas_;
  Arenas arenas_{};
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<StepRunner> runner_;
};

// Whether `next` fits into the arenas of `now` with everything that lives for the whole run at its place.
bool same_homes(const RunPlan& now, const RunPlan& next);

}  // namespace protrain
