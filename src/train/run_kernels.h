// The update kernels of a run, with the threads that they run on: of its device, and of the host beside it.
#pragma once
#include <memory>

#include "base/thread_pool.h"
#include "optimizer/kernels.h"

namespace protrain {

struct RunKernels {
  std::unique_ptr<ThreadPool> pool, host_pool;  // of the CPU device's kernels, and of updates on the host
  std::unique_ptr<UpdateKernels> device, host;
};

RunKernels make_run_kernels(DeviceKind, int compute_threads);

}  // namespace protrain
