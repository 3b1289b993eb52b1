// The kernels' launchers: plain C++ over .cu files. All enqueue on `stream` and return; launch errors are
// InternalError.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "optimizer/adamw.h"

namespace protrain::cuda {

void launch_adamw(cudaStream_t, const AdamWStep&, const StepControl*, DType compute, const StateBytes&);
void launch_round(cudaStream_t, const float* from, std::uint16_t* to, std::int64_t n);
void launch_squared_norm(cudaStream_t, const void* gradient, DType, std::int64_t n, double* scratch, double* result);
void launch_finish_norm(cudaStream_t, const double* squared_norms, std::int64_t tensors, const double* losses,
                        std::int64_t n_losses, double max_norm, StepControl* control);
void check_launch(const char* kernel);

}  // namespace protrain::cuda
