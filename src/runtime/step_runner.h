// Joins chunk store, blocks and update kernels to the executor: the runners of all task kinds, and the values that one
// step brings (scalars of the update, dropout key, host batch). One object a run; used by one thread.
#pragma once
#include <memory>
#include <vector>

#include "optimizer/kernels.h"
#include "runtime/chunk_store.h"
#include "runtime/executor.h"

namespace protrain {

// What the caller asks for; the runner adds what is pending and what the slots hold, and has the StepShape.
struct StepRequest {
  Graph graph = Graph::kTrain;  // kTrain or kEvaluate
  BatchShape batch;
  std::int64_t micro_batches = 1;
  int batch_slot = 0;
};

struct StepInputs {
  // All micro-batches of the step, one after the other, each batch_layout(shape).bytes apart: copied to batch_staging()
  // of the step's slot. Null: they are there already.
  const std::byte* host_batch = nullptr;
  std::int64_t supervised_tokens = 0;  // of the whole step; 0: kTrain runs nothing, control.skip comes back set
  std::uint64_t dropout_key = 0;       // seed and step, as in Context: blocks tell micro-batches apart by their index
  double learning_rate = 0;
  double weight_decay = 0;
  double max_norm = 0;
  std::int64_t update = 1;  // Adam's t of this update, from 1
};

struct StepOutputs {
  StepControl control;  // loss_sum unscaled; evaluation: the losses' sum only. Abandoned: as made
  RunResult run;
  bool updated_early = false;  // some chunk was updated before the norm was known (clipping off)
};

// Note [Pending updates]: with clipping, chunks of place kCpu are updated under the next step's forward, from the
// gradient, scalars and control of the step before. The runner keeps those, and which chunks are still to be done: a
// step that is abandoned half way leaves the rest to the next one or to drain(). A skipped step leaves nothing pending.
//
// Note [Half done]: a chunk whose update began and did not end is neither of this step nor of the one before, and so is
// a model of which one chunk has had a step's update and another has not. When a run fails so (a pending update that
// began and is not done; any update of the step's own that began), the error says it, and the state is lost for good:
// nothing is tried again, and the store gives nothing more to read. A failed copy loses nothing: what is on the host is
// the truth of a kCpu chunk, and a gradient on its way has not been applied.
class StepRunner {
 public:
  // All references outlive it. `host_kernels` run the kCpu updates, on the cpu_update lane's thread; null if there are
  // none.
  StepRunner(ChunkStore&, const std::vector<Chunk>&, const RunShape&, const Profile&, const Plan&, const Layout&,
             Device&, std::vector<std::unique_ptr<Block>>, UpdateKernels& device_kernels, UpdateKernels* host_kernels,
             const AdamWOptions&, const Arenas&);
  ~StepRunner();

  // Host memory for the batches of step slot 0 or 1, written by the loader before step() (pinned).
  std::byte* batch_staging(int slot);
  // Everything has ended when it returns or throws; after a throw or an abandoned step, weights are as before the step
  // (its own updates; pending ones may have been applied), or lost: Note [Half done]. kEvaluate drains first.
  StepOutputs step(const StepRequest&, const StepInputs&, const RunOptions& = {});
  void drain();                      // no update is pending afterwards
  void set_runner(Op, TaskRunner&);  // of a registered kind; it outlives this; before the first step
  bool pending() const;
  const Schedule& last_schedule() const;  // what the last step() ran; for chrome_trace()
  Block& block(Id);
  std::vector<std::unique_ptr<Block>> release_blocks();  // nothing may be pending; afterwards only the destructor
  Executor& executor();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
