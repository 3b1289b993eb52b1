// The one RAII type for CUDA handles, and the one place that turns CUDA's error codes into exceptions.
#pragma once
#include <cuda_runtime_api.h>

#include <utility>

#include "base/error.h"

namespace protrain {

// Error naming the call. Running out of memory is kDoesNotFit, everything else kInternal: the device is unusable then.
inline void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // takes the error away, so that the next call does not report it again
  const ExitCode code = error == cudaErrorMemoryAllocation ? ExitCode::kDoesNotFit : ExitCode::kInternal;
  fail(code, "{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

// Owns a handle, destroyed by `kDestroy`; its error is dropped, because destructors do not throw. Movable.
template <typename T, cudaError_t (*kDestroy)(T)>
class CudaHandle {
 public:
  CudaHandle() = default;
  explicit CudaHandle(T handle) : handle_(handle) {}
  ~CudaHandle() {
    if (handle_ != T{}) kDestroy(handle_);
  }
  CudaHandle(CudaHandle&& other) noexcept : handle_(std::exchange(other.handle_, T{})) {}
  CudaHandle& operator=(CudaHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  T get() const { return handle_; }

 private:
  T handle_{};
};

using CudaStreamHandle = CudaHandle<cudaStream_t, cudaStreamDestroy>;
using CudaEventHandle = CudaHandle<cudaEvent_t, cudaEventDestroy>;
using CudaMemory = CudaHandle<void*, cudaFree>;
using CudaRegistration = CudaHandle<void*, cudaHostUnregister>;

}  // namespace protrain
