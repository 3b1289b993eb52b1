#include "base/error.h"
#include "device/device.h"

namespace protrain {

bool cuda_compiled() { return false; }

int cuda_device_count() { return 0; }

std::unique_ptr<Device> make_cuda_device(int) {
  fail(ExitCode::kConfig, "device: cuda, but this build has no CUDA code; use device: cpu or build with nvcc");
}

}  // namespace protrain
