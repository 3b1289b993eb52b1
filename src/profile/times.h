// What tasks cost on this machine, found by running them: one block of each kind, copies, updates; never the model.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "optimizer/kernels.h"
#include "plan/plan.h"
#include "schedule/rates.h"
#include "tensor/trace_book.h"

namespace protrain {

struct TimingOptions {
  // Of the whole on a GPU, at most, as far as one call of each kind allows; a small model, which heats no card, gets a
  // part of it. Starting up and recording come on top: 4 s for a 7B shape (llama-2-7b.profile.log in
  // bench/results/plans_h200). The CPU device is not worth so much: there it is a few calls of each kind.
  double seconds = 30;
  // Of the same model on the same machine, for other shapes: calls that it has are taken over, and so is all that does
  // not depend on the micro-batch. Only the calls that are missing are timed then, in about a seventh of `seconds`. Not
  // measured: as none.
  Rates earlier = {};
  std::function<void(const std::string&)> progress = nullptr;  // one line a stage
  Bytes host_budget = Bytes{1} << 50;                          // of host memory, for state that is updated and copies
};

// Times of every call of `memory` (events, no tracing, block calls at fixed addresses as in a run), of the links each
// way and both, of updates on device and host, and how much each slows the other down. On the calling thread, after
// record_memory() of the same book, whose mode is plain before and after; the kernels are used by no one else
// meanwhile. No generator of LibTorch's is touched. between_steps stays 0.
//
// Memory is plain and given back: of the device one block's calls and, within what is left of `device_budget`, a second
// block and room for copies and updates; of the host 4.3 GB at most, 128 MiB of it pinned, and not beyond
// `host_budget`, but for some MiB.
//
// `host_kernels` null: no CPU update is measured and the figures of the device's own take its place.
Rates measure_rates(const ModelSpec&, std::span<const std::unique_ptr<Block>>, TraceBook&, const RunShape&,
                    const Profile& memory, Device&, UpdateKernels& device_kernels, UpdateKernels* host_kernels,
                    Bytes device_budget, const TimingOptions& = {});

// The host's update alone, once more: its speed follows what else uses the host's memory, from minute to minute. Takes
// two seconds; of the host as measure_rates(), given back.
Rates::Linear measure_host_update(const ModelSpec&, const RunShape&, Device&, UpdateKernels& host_kernels,
                                  Bytes host_budget);

}  // namespace protrain
