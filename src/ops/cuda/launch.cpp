#include <cuda_runtime_api.h>

#include "base/error.h"

namespace protrain::ops::cuda {

void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  PROTRAIN_CHECK(error == cudaSuccess, "{}: {}", kernel, cudaGetErrorString(error));
}

}  // namespace protrain::ops::cuda
