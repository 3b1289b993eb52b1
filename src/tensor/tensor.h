// The one bridge to LibTorch: tensors over ranges that the runtime owns, the current stream, determinism.
#pragma once
#include <ATen/core/Tensor.h>

#include "base/dtype.h"
#include "device/device.h"

namespace protrain {

at::ScalarType scalar_type(DType);

// A tensor over memory that someone else owns and that outlives it. Contiguous. `bytes` may be null only for empty
// shapes. On CUDA it belongs to the calling thread's current device. Any thread.
at::Tensor view(const std::byte* bytes, at::IntArrayRef shape, DType, DeviceKind);

// Makes LibTorch issue its work to this stream while it lives (nothing on the CPU). One thread.
class StreamScope {
 public:
  StreamScope(const Stream&, DeviceKind);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The cudaStream_t that LibTorch issues the calling thread's work to; InternalError in a build without CUDA.
void* current_stream();

struct TorchOptions {
  int compute_threads = 1;  // fixed at start, stored in checkpoints: it changes bits on the CPU
  bool deterministic = false;
};
// Once, before the first block runs and before any thread but the caller uses LibTorch: it sets process-wide flags and,
// for determinism, the cuBLAS workspace in the environment. fp32 products keep all their bits (no TF32).
void set_up_torch(const TorchOptions&);

namespace tensor_detail {
at::Device current_cuda_device();
}  // namespace tensor_detail

}  // namespace protrain
