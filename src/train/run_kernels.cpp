#include "train/run_kernels.h"

#include "base/cores.h"

namespace protrain {

RunKernels make_run_kernels(DeviceKind kind, int compute_threads) {
  RunKernels kernels;
  const bool on_host = kind == DeviceKind::kCpu;  // then blocks and updates share the same cores
  if (on_host) {
    kernels.pool = std::make_unique<ThreadPool>(compute_threads);
    kernels.device = make_cpu_kernels(*kernels.pool);
  } else {
    kernels.device = make_cuda_kernels();
  }
  kernels.host_pool = std::make_unique<ThreadPool>(on_host ? compute_threads : background_cores(), Placement::kByNode);
  kernels.host = make_cpu_kernels(*kernels.host_pool);
  return kernels;
}

}  // namespace protrain
