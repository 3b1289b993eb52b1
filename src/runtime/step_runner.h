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
  const std::byte* host_batch = nullptr;  // all micro-batches of the step, one after the other, as in the batch slot
  std::int64_t supervised_tokens = 0;     // of the whole step; 0: the update is skipped
  std::uint64_t dropout_key = 0;
  double learning_rate = 0;
  double weight_decay = 0;
  double max_norm = 0;
  std::int64_t update = 1;                // Adam's t of this update, from 1
};

struct StepOutputs {
  StepControl control;                    // loss_sum unscaled; evaluation: the losses' sum only
  RunResult run;
};

class StepRunner {
 public:
  StepRunner(ChunkStore&, const std::vector<Chunk>&, const RunShape&, const Plan&, const Layout&, Device&,
             std::vector<std::unique_ptr<Block>>, UpdateKernels&, const AdamWOptions&, std::byte* pinned_arena);
  ~StepRunner();

  // Host memory for the batches of step slot 0 or 1, written by the loader before step() (pinned).
  std::byte* batch_staging(int slot);
  StepOutputs step(const StepShape&, const StepInputs&, const RunOptions& = {});
  Block& block(Id);
  Executor& executor();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
