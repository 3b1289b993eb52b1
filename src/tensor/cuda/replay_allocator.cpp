// LibTorch's device memory through our hooks, and the workspaces that cuBLAS keeps.
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <map>
#include <unordered_map>

#include "base/error.h"
#include "tensor/install.h"
#include "tensor/tensor.h"

namespace protrain {
namespace {

// Plain memory: freed pieces wait for a request of at most half their size less. Called with the hooks' mutex held.
struct Cache {
  std::multimap<Bytes, void*> unused;
  std::unordered_map<void*, Bytes> sizes;
};
Cache& cache() {
  static Cache* const cache = new Cache;
  return *cache;
}

// With the hooks' mutex held. cudaFree waits for the device.
void free_unused(Cache& c) {
  for (const auto& [bytes, memory] : c.unused) {
    cudaFree(memory);
    c.sizes.erase(memory);
  }
  c.unused.clear();
}

void* cuda_allocate(Bytes bytes) {
  const Bytes wanted = round_up(bytes, kAlignment);
  Cache& c = cache();
  const auto fits = c.unused.lower_bound(wanted);
  if (fits != c.unused.end() && fits->first <= 2 * wanted) {
    void* const memory = fits->second;
    c.unused.erase(fits);
    return memory;
  }
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(wanted));
  if (error == cudaErrorMemoryAllocation && !c.unused.empty()) {
    cudaGetLastError();  // clears it
    free_unused(c);
    error = cudaMalloc(&memory, static_cast<std::size_t>(wanted));
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears it
    fail(ExitCode::kDoesNotFit, "the device has no {} left for LibTorch ({})", format_bytes(wanted),
         cudaGetErrorString(error));
  }
  c.sizes[memory] = wanted;
  return memory;
}

void cuda_release(void* memory) {
  Cache& c = cache();
  c.unused.emplace(c.sizes.at(memory), memory);
}

hooks::Served serve(std::size_t bytes) {
  const auto wanted = static_cast<Bytes>(bytes);
  return hooks::in_session() ? hooks::allocate(wanted) : hooks::allocate_outside(wanted);
}

class CudaAllocator final : public torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
 public:
  CudaAllocator()
      : torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator(
            [](std::size_t bytes, int, cudaStream_t) { return serve(bytes).memory; },
            [](void* memory, std::size_t, int, cudaStream_t) { hooks::release(memory); }) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::kCUDA, c10::cuda::current_device());
    if (bytes == 0) return {nullptr, device};
    const hooks::Served served = serve(bytes);
    return {served.memory, served.memory, served.deleter, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &hooks::deleter; }
  void* raw_alloc(std::size_t bytes) override { return bytes == 0 ? nullptr : serve(bytes).memory; }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t) override { return raw_alloc(bytes); }
  void raw_delete(void* memory) override { hooks::release(memory); }
};

void make_workspaces_of_this_thread() {
  at::cuda::getCurrentCUDABlasHandle();
  at::cuda::getCUDABlasLtWorkspace();
}

struct MakeWorkspaces final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    make_workspaces_of_this_thread();
    return std::move(gradients);
  }
};

// Runs a node on the thread that autograd has for this device, with the current stream.
void make_workspaces_of_autograd_thread() {
  using torch::autograd::impl::gradient_edge;
  const at::Tensor input = at::empty({1}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  input.requires_grad_(true);
  at::Tensor output = input.detach();
  const std::shared_ptr<MakeWorkspaces> node(new MakeWorkspaces, torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  const auto index = node->add_input_metadata(output);
  torch::autograd::impl::set_gradient_edge(output, {node, index});
  torch::autograd::Engine::get_default_engine().execute({gradient_edge(output)}, {input.detach()}, false, false, false,
                                                        {gradient_edge(input)});
}

}  // namespace

hooks::Plain cuda_plain_memory() { return {&cuda_allocate, &cuda_release}; }

void install_cuda_allocator() {
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(std::make_shared<CudaAllocator>());
}

void make_cuda_workspaces(const Stream& stream) {
  const StreamScope scope(stream, DeviceKind::kCuda);
  make_workspaces_of_this_thread();
  make_workspaces_of_autograd_thread();
}

void drop_cuda_workspaces() { at::cuda::clearCublasWorkspaces(); }

void drop_cuda_cache() {
  const std::lock_guard lock(hooks::shared().mutex);
  free_unused(cache());
}

}  // namespace protrain
