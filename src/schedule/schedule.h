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
  kRound,       // chunk: gradient_regions' sum -> wire. access[0] read, access[1] written
  kNorm,        // chunk: squared norm of each of its tensors. access[0]: the gradient, access[1]: partial sums
  kFinishNorm,  // access[0] losses (one a micro-batch), access[1] the StepControl written; access[2] all squared norms,
                // absent: of the losses alone
  kUpdate,      // chunk: AdamW, on the lane of its place. access[0] the StepControl, access[1] the gradient (both where
                // the lane's memory is), then the chunk's weight, residual, m, v as far as it has them
};
inline constexpr int kOps = 6;  // built in
inline constexpr int kMostOps = 16;
std::string_view op_name(Op);
// A new kind of task: what a mode of activations names in its row (plan/activation.h). At the start of a program, as
// rows are. InternalError for a name that is taken, and for more than kMostOps.
Op register_op(std::string name);

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
  bool first = true;           // kRunBlock of kTrain: this micro-batch is the first to write this block's gradients
  std::vector<Access> access;  // every range the task touches
  std::vector<Id> after;       // smaller ids only; its own lane's order need not be named
  // Device and pinned ranges of the layout whose life begins with this task / has ended when this task has run. Each
  // counts as a write of the whole range: bytes may be poisoned, and lives of one address are in the graph's order.
  std::vector<Range> acquires, releases;
  std::string name;  // "backward layer 3 micro-batch 1": for errors and traces
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
  int batch_slot = 0;    // 0 or 1: which half of kBatch this step uses
  bool clip = true;      // kTrain: kCpu updates wait for the norm, so they are left to the next graph; else they run in
                         // backward, as soon as their gradient has arrived
  int pending_slot = 0;  // whose results (kResults) the pending updates read
  std::vector<Id> pending;  // kTrain, kDrain: kCpu chunks still to be updated with the gradient on the host, ascending
  // Schedule::slots_after of the graph before; empty: nothing is there. Of a chunk that is pending here, what the slot
  // holds is not taken.
  std::vector<Id> slots;
  bool operator==(const StepShape&) const = default;
};

// kTrain: upload of the batch; micro-batches through the blocks in the plan's order, each streamed chunk loaded as soon
// as its slot is free and only if it is not there; before it, if pending, its update (a chunk with a home on the device
// is uploaded there after it). A chunk's gradient is rounded, its norms are taken and it leaves as soon as it is
// complete. Then the step's control and the resident updates, and the control's way back to kResults[batch_slot]. With
// clip, kCpu chunks are left pending (all of them); without, their slots_after are -1 and their homes are uploaded at
// the end. kDrain: updates of what is pending, uploads of homes. kEvaluate: forwards in the plan's order; nothing may
// be pending.
//
// Edges are those that accesses and lives need, and no more: without any one of them race() finds a pair. Where a task
// of a transfer lane stands in the order says how long bytes are held, not when it runs. A copy out of a saved set or
// input stands offload_distance block calls after the forward (before the backward at the latest): so long its bytes
// are lent to no one, and compute does not wait for it. A copy in stands offload_distance block calls before the
// backward. A kRound stands one block call late for the same reason. `batch` is a planned shape, `micro_batches` at
// most what the layout was made for (InternalError).
Schedule expand(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Profile&, const Plan&,
                const Layout&, const StepShape&);

// Empty iff all overlapping accesses, one of them writing, are ordered by the graph (lane order included); else names
// the first pair.
std::string race(const Schedule&);

}  // namespace protrain
