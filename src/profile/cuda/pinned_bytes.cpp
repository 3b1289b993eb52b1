#include "profile/pinned_bytes.h"

#include "device/cuda/handle.h"

namespace protrain::profile {

std::shared_ptr<void> register_host_memory(std::byte* memory, Bytes bytes) {
  const cudaError_t error = cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears it
    fail(ExitCode::kDoesNotFit, "the system refuses to pin {} of host memory ({}); is `ulimit -l` too low?",
         format_bytes(bytes), cudaGetErrorString(error));
  }
  return std::make_shared<CudaRegistration>(memory);
}

}  // namespace protrain::profile
