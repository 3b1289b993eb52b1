// What the runners of tasks see: fixed for the run above, set anew for each step below. Internal to runtime/.
//
// Thread safety: written between runs only.
#pragma once
#include <memory>
#include <vector>

#include "block/block.h"
#include "optimizer/kernels.h"
#include "runtime/chunk_store.h"
#include "runtime/step_runner.h"

namespace protrain {

// AdamW's scalars of one update.
struct UpdateScalars {
  AdamWStep decayed, plain;  // with and without weight decay
};

struct StepContext {
  ChunkStore& store;
  const std::vector<Chunk>& chunks;
  const Layout& layout;
  UpdateKernels& device_kernels;
  UpdateKernels* host_kernels;
  std::vector<std::unique_ptr<Block>> blocks;

  std::vector<Context> contexts;                   // by micro-batch
  std::vector<std::unique_ptr<SavedGraph>> saved;  // by micro-batch x blocks + block
  UpdateScalars scalars;                           // of this step
  UpdateScalars pending_scalars;                   // of the step whose updates are pending
  double max_norm = 0;

  std::byte* at(const Range& range) const { return store.at(range); }
  // Copies the batch where it is uploaded from and fills what a step brings; nothing of what is pending.
  void set_up(const StepShape&, const StepInputs&, const AdamWOptions&);
  StepControl results(Id index) const;  // of kResults
};

// Of kResults: the control made of the losses alone, which updates during backward read.
inline constexpr Id kResultsOfLosses = 2;

}  // namespace protrain
