#include "base/error.h"
#include "tensor/install.h"

namespace protrain {

hooks::Plain cuda_plain_memory() {
  PROTRAIN_CHECK(false, "this build has no CUDA code");
  return {};
}
void install_cuda_allocator() { PROTRAIN_CHECK(false, "this build has no CUDA code"); }
void make_cuda_workspaces(const Stream&) { PROTRAIN_CHECK(false, "this build has no CUDA code"); }
void drop_cuda_workspaces() { PROTRAIN_CHECK(false, "this build has no CUDA code"); }
void drop_cuda_cache() { PROTRAIN_CHECK(false, "this build has no CUDA code"); }

}  // namespace protrain
