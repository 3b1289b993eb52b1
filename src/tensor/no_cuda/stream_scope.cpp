#include "base/error.h"
#include "tensor/tensor.h"

namespace protrain {

struct StreamScope::State {};

StreamScope::StreamScope(const Stream&, DeviceKind kind) {
  PROTRAIN_CHECK(kind == DeviceKind::kCpu, "this build has no CUDA code");
}

StreamScope::~StreamScope() = default;

void* current_stream() {
  PROTRAIN_CHECK(false, "this build has no CUDA code");
  return nullptr;
}

at::Device tensor_detail::current_cuda_device() {
  PROTRAIN_CHECK(false, "this build has no CUDA code");
  return at::Device(at::kCPU);
}

}  // namespace protrain
