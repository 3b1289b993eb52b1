// The CUDA side of replay.h, in cuda/ and as stubs in no_cuda/. Internal to tensor/.
#pragma once
#include "tensor/hooks.h"

namespace protrain {

hooks::Plain cuda_plain_memory();
void install_cuda_allocator();
void make_cuda_workspaces(const Stream&);  // of the calling and of autograd's thread
void drop_cuda_workspaces();
void drop_cuda_cache();

}  // namespace protrain
