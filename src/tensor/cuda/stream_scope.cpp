#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "tensor/tensor.h"

namespace protrain {

struct StreamScope::State {
  explicit State(c10::cuda::CUDAStream stream) : guard(stream) {}
  c10::cuda::CUDAStreamGuard guard;
};

StreamScope::StreamScope(const Stream& stream, DeviceKind kind) {
  if (kind == DeviceKind::kCpu) return;
  PROTRAIN_CHECK(stream.native() != nullptr, "a CUDA stream has a handle");
  state_ = std::make_unique<State>(
      c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream.native()), c10::cuda::current_device()));
}

StreamScope::~StreamScope() = default;

void* current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

at::Device tensor_detail::current_cuda_device() { return {at::kCUDA, c10::cuda::current_device()}; }

}  // namespace protrain
