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
  kUpdate,      // chunk: AdamW, on the lane of its place
};
inline constexpr int kOps = 6;
std::string_view op_name(Op);

struct Access {
  Range range;
  bool writes = false;
  bool fresh = false;  // with writes: what was there before does not matter; a new life of the region begins
};

// What a kRunBlock task hands to its block, as in BlockCall; 0 bytes: null. All of them stand in Task::access too.
struct BlockRanges {
  Range input, output, output_gradient, input_gradient;
  Range saved, workspace;
  Range batch, host_batch;
};

struct Task {
  Op op = Op::kRunBlock;
  Lane lane = Lane::kCompute;
  Invocation what;             // kRunBlock
  BlockRanges block;           // kRunBlock
  Id chunk = -1;               // kRound, kNorm, kUpdate; of kCopy: whose weight or gradient it moves, else -1
  bool pending = false;        // kUpdate: the previous step's, under this one's forward
  bool first = true;           // kRunBlock, kBackward: the first micro-batch to write this block's gradients
  std::vector<Access> access;  // every range the task touches
  std::vector<Id> after;       // smaller ids only; its own lane's order need not be named
  std::vector<Range> acquires;  // device and pinned ranges whose life begins with this task
  std::vector<Range> releases;  // ... whose life has ended when this task has run
  std::string name;            // "backward layer 3 micro-batch 1": for errors and traces
};

struct Schedule {
  std::vector<Task> tasks;
  std::vector<Id> slots_after;  // by body slot: the chunk whose current weight it holds at the end; -1 none
};

enum class Graph : std::uint8_t {
  kTrain,
  kDrain,     // the pending updates and nothing else
  kEvaluate,  // forwards, sum of losses
};
struct StepShape {
  Graph graph = Graph::kTrain;
  BatchShape batch;
  std::int64_t micro_batches = 1;
  int batch_slot = 0;      // 0 or 1: which half of kBatch this step uses
  bool clip = true;        // kTrain: kCpu updates wait for the norm, so they are left to the next graph; else they run in
                           // backward, as soon as their gradient has arrived
  int pending_slot = 0;    // whose results (kResults) the pending updates read
  std::vector<Id> pending;  // kTrain, kDrain: kCpu chunks still to be updated with the gradient on the host, ascending
  std::vector<Id> slots;    // Schedule::slots_after of the graph before; empty: nothing is there
  bool operator==(const StepShape&) const = default;
};

// kTrain: upload of the batch; micro-batches through the blocks in the plan's order, each streamed chunk loaded as soon
// as its slot is free and only if it is not there; before it, if pending, its update. A chunk's gradient is rounded, its
// norms are taken and it leaves as soon as it is complete. Then the step's control and the resident updates, and the
// control's way back. Edges are those that the accesses need, and no more: without any one of them race() finds a pair.
// `batch` and `micro_batches` fit what the layout was made for (InternalError).
Schedule expand(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Profile&, const Plan&, const Layout&,
                const StepShape&);

// Empty iff all overlapping accesses, one of them writing, are ordered by the graph (lane order included); else names
// the first pair.
std::string race(const Schedule&);

}  // namespace protrain
