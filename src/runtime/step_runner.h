// Joins chunk store, blocks and update kernels to the executor: the runners of all task kinds, and the values that one
// step brings (scalars of the update, dropout key, host batch). One object a run; used by one thread.
#pragma once
#include <memory>
#include <vector>

#include "optimizer/kernels.h"
#include "runtime/chunk_store.h"
#include "runtime/executor.h"

namespace protrain {

struct StepInputs {
  // All micro-batches of the step, one after the other, each batch_layout(shape).bytes apart: copied to batch_staging()
  // of the step's slot. Null: they are there already.
  const std::byte* host_batch = nullptr;
  std::int64_t supervised_tokens = 0;  // of the whole step; 0: nothing runs, control.skip comes back set
  std::uint64_t dropout_key = 0;       // seed and step, as in Context: blocks tell micro-batches apart by their index
  double learning_rate = 0;
  double weight_decay = 0;
  double max_norm = 0;
  std::int64_t update = 1;  // Adam's t of this update, from 1
};

struct StepOutputs {
  StepControl control;  // loss_sum unscaled; evaluation: the losses' sum only. Abandoned: as made
  RunResult run;
};

class StepRunner {
 public:
  // All references outlive it. The arenas hold Layout::bytes of their tiers; the pinned one is Device::arena(kPinned,
  // ...).
  StepRunner(ChunkStore&, const std::vector<Chunk>&, const RunShape&, const Plan&, const Layout&, Device&,
             std::vector<std::unique_ptr<Block>>, UpdateKernels&, const AdamWOptions&, std::byte* pinned_arena);
  ~StepRunner();

  // Host memory for the batches of step slot 0 or 1, written by the loader before step() (pinned).
  std::byte* batch_staging(int slot);
  // Everything has ended when it returns or throws; after a throw or an abandoned step, weights are as before the step
  // unless an update had begun.
  StepOutputs step(const StepShape&, const StepInputs&, const RunOptions& = {});
  const Schedule& schedule(const StepShape&);  // what step() runs, made once a shape; for chrome_trace()
  Block& block(Id);
  Executor& executor();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
