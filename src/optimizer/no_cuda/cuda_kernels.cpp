#include "base/error.h"
#include "optimizer/kernels.h"

namespace protrain {

std::unique_ptr<UpdateKernels> make_cuda_kernels() {
  fail(ExitCode::kConfig,
       "device: cuda asks for a GPU, but this build has no CUDA; use device: cpu or build with nvcc");
}

}  // namespace protrain
