#include <cstdio>

#include "cli/commands.h"
#include "device/device.h"

namespace protrain::cli {
namespace {
constexpr const char* kVersion = "0.1.0";
}

int version_command() {
  std::printf("protrain %s (CUDA code: %s, GPUs: %d)\n", kVersion, cuda_compiled() ? "yes" : "no", cuda_device_count());
  return 0;
}

}  // namespace protrain::cli
