// A plan expanded to the task graph of one step. Plain data and pure functions; thread-safe.
//
// Note [One total order]: tasks stand in one total order. Each lane runs its subsequence in that order; every
// dependency is an explicit edge to an earlier task. So the earliest unfinished task can always run: no deadlock by
// construction. The executor and the simulator walk this same graph.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "block/block.h"
#include "plan/plan.h"

namespace protrain {

enum class Lane : std::uint8_t { kCompute, kH2d, kD2h, kCpuUpdate, kGpuUpdate, kDiskRead, kDiskWrite };
inline constexpr int kLanes = 7;
std::string_view lane_name(Lane);

enum class Op : std::uint8_t {
  kRunBlock,    // Task::what
  kCopy,        // access[0] read, access[1] written, equal sizes
  kRound,       // chunk: accumulators -> gradients on the wire
  kNorm,        // chunk: squared norm of each of its tensors
  kFinishNorm,  // all norms and losses -> StepControl
  kUpdate,      // chunk: AdamW
};
inline constexpr int kOps = 6;
std::string_view op_name(Op);

struct Access {
  Range range;
  bool writes = false;
};

// What a kRunBlock task hands to its block, as in BlockCall; 0 bytes: null. All of them stand in Task::access too.
struct BlockRanges {
  Range input, output, output_gradient, input_gradient;
  Range batch, host_batch;
};

struct Task {
  Op op = Op::kRunBlock;
  Lane lane = Lane::kCompute;
  Invocation what;             // kRunBlock
  BlockRanges block;           // kRunBlock
  Id chunk = -1;               // kRound, kNorm, kUpdate
  std::vector<Access> access;  // every range the task touches
  std::vector<Id> after;       // smaller ids only; its own lane's order need not be named
  std::string name;            // "backward layer 3 micro-batch 1": for errors and traces
};

struct Schedule {
  std::vector<Task> tasks;
};

enum class Graph : std::uint8_t { kTrain, kEvaluate };
struct StepShape {
  Graph graph = Graph::kTrain;
  BatchShape batch;
  std::int64_t micro_batches = 1;
  int batch_slot = 0;  // 0 or 1: which half of kBatch this step uses
  bool operator==(const StepShape&) const = default;
};

// kTrain: upload; each micro-batch forward, then backward; a chunk's gradient is rounded and its norms are taken as
// soon as it is complete; then the step's control, all updates, the control's way back. kEvaluate: upload, forwards,
// sum of losses. Edges are those that the accesses need, and no more: without any one of them race() finds a pair.
// `batch` and `micro_batches` fit what the layout was made for (InternalError).
Schedule expand(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Plan&, const Layout&,
                const StepShape&);

// Empty iff all overlapping accesses, one of them writing, are ordered by the graph (lane order included); else names
// the first pair.
std::string race(const Schedule&);

}  // namespace protrain
