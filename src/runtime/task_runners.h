// The runner of each kind of task, over the values of the step that is running. Internal to runtime/.
#pragma once
#include <memory>
#include <vector>

#include "block/block.h"
#include "optimizer/kernels.h"
#include "runtime/chunk_store.h"
#include "runtime/executor.h"

namespace protrain {

// What the runners see: fixed for the run above, set anew for each step below. Written between runs only.
struct StepContext {
  ChunkStore& store;
  const std::vector<Chunk>& chunks;
  const Layout& layout;
  UpdateKernels& kernels;
  std::byte* pinned_arena;
  std::vector<std::unique_ptr<Block>> blocks;

  Graph graph = Graph::kTrain;
  std::vector<Context> contexts;                   // by micro-batch
  std::vector<std::unique_ptr<SavedGraph>> saved;  // by block: one micro-batch at a time
  AdamWStep decayed, plain;                        // with and without weight decay
  double max_norm = 0;

  std::byte* at(const Range& range) const {
    return range.tier == Tier::kDevice ? store.at(range) : pinned_arena + range.offset;
  }
};

// Owns one runner an Op; the context outlives it.
class TaskRunners {
 public:
  explicit TaskRunners(StepContext&);
  ~TaskRunners();
  const RunnerTable& table() const { return table_; }

 private:
  std::vector<std::unique_ptr<TaskRunner>> owned_;
  RunnerTable table_{};
};

}  // namespace protrain
