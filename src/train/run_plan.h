// Decides everything about a run before it allocates anything: plan, chunks, layout.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "schedule/refine.h"
#include "search/search.h"
#include "train/measured_model.h"

namespace protrain {

// CUDA without a limit of the user's: left free for what the driver may still load.
inline constexpr Bytes kDeviceReserve = 64 * kMiB;

struct RunPlan {
  RunShape shape;
  Profile profile;
  Rates rates;
  Plan plan;
  std::vector<Chunk> chunks;
  Layout layout;
  SearchSpace space;  // what the user's knobs left to the search
  MemoryLimits limits;
  Bytes host_reserve = 0;  // of this host: left to the system beside limits.host
  Bytes host_before = 0;   // resident at most before there was a plan, while the machine was measured; 0: not known
  SearchResult found;      // its `memory` is what stands above
  std::string reason;      // one line: where the plan comes from and what it does
};

// Error(kDoesNotFit) with the bytes needed and available, by tier, and the nearest change that fits; Error(kConfig)
// for knobs that this model or run cannot take.
// `order`: that of the checkpoint to go on from.
RunPlan choose_plan(Files&, const TrainConfig&, const ModelSource&, const MeasuredModel&,
                    std::optional<Order> order = {});

// The plan of a run that goes on, once more with the rates of one of its steps: `measured` is the timeline of
// `schedule`, a full step. Only knobs that leave the model's state where it is and that the user did not set are chosen
// anew (activation modes and how far their transfers lag), within the arenas that are there. Changes no bit of the
// result.
struct Revision {
  Rates rates;         // refined
  Prediction present;  // of the plan that rules, with them
  RunPlan next;        // best with them
};
Revision revise_plan(const TrainConfig&, const ModelSource&, const RunPlan&, const Schedule& schedule,
                     const Timeline& measured);

// search(), but for the order of accumulation, the one knob that changes bits of the result: where the knobs leave it
// open it is searched on CUDA without `deterministic` only, and elsewhere kMicroBatch, so that no limit on memory and
// no measured time changes what is trained.
SearchResult search_plan(const ModelSpec&, const RunShape&, const Profile&, const Rates&, const MemoryLimits&,
                         SearchSpace, const TrainConfig&, DeviceKind);

// per_device_train_batch_size: auto. The fastest of the divisors of an update's rows, smallest first, until larger ones
// do not fit or are no faster. `seconds`: of a step with so many rows a micro-batch; none where it does not fit (of the
// smallest too: then that is the answer).
std::int64_t fastest_micro_batch(std::int64_t rows_of_update,
                                 const std::function<std::optional<double>(std::int64_t)>& seconds);

// The limits with_arenas(), now that all are there: what the driver says that the device holds beside its arena. Does
// nothing on the CPU. Error(kDoesNotFit) when the user's limit is passed by it.
void settle_limits(RunPlan&, const Device&);

MemoryLimits memory_limits(const TrainConfig&, const MeasuredModel&);

// What this machine has for a run, before any arena is there.
struct MemoryThere {
  Bytes device = 0;  // what the process uses beside the arenas included; of a CPU the host's
  Bytes host = 0;
};
MemoryThere memory_there(const MeasuredModel&);
// RunPlan::host_reserve: 0 where the limit is the user's.
Bytes host_reserve(const TrainConfig&, const MemoryLimits&);
// The user's limits that lie above it, and so limit nothing: a line each.
std::vector<std::string> idle_limits(const TrainConfig&, const MemoryThere&);

// Weights, gradients, optimizer state: what the model would take with all of it in one place.
Bytes state_bytes(const ModelSpec&, DType compute);

}  // namespace protrain
