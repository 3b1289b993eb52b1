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
  double seconds = 40;  // of the whole, at most; fewer repetitions where it would not do
  std::function<void(const std::string&)> progress = nullptr;  // one line a stage
};

// Times of every call of `memory` (events, no tracing, block calls at fixed addresses as in a run), of the links each
// way and both, of updates on device and host, and how much each slows the other down. Memory is plain and given back,
// at most `device_budget` bytes of the device. On the calling thread, after record_memory(). `host_kernels` null: no
// CPU update is measured and the figure of `device_kernels`' own device is taken.
Rates measure_rates(const ModelSpec&, std::span<const std::unique_ptr<Block>>, TraceBook&, const RunShape&,
                    const Profile& memory, Device&, UpdateKernels& device_kernels, UpdateKernels* host_kernels,
                    Bytes device_budget, const TimingOptions& = {});

}  // namespace protrain
