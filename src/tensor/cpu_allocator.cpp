// The allocator of host tensors, and which one install_allocator() takes.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include "base/error.h"
#include "tensor/hooks.h"
#include "tensor/install.h"

namespace protrain {
namespace {

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator& other) : other_(other) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return other_.allocate(0);
    if (!hooks::in_session()) {
      count_outside();
      return other_.allocate(bytes);
    }
    const hooks::Served served = hooks::allocate(static_cast<Bytes>(bytes));
    return {served.memory, served.memory, served.deleter, c10::Device(c10::kCPU)};
  }
  // oneDNN takes its scratch by the raw interface: within a call, and between calls from the other allocator.
  c10::DeleterFnPtr raw_deleter() const override { return &release_raw; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void count_outside() {
    hooks::Shared& s = hooks::shared();
    const std::lock_guard lock(s.mutex);
    ++(s.active != nullptr ? s.counts.team : s.counts.plain);
  }

  static void release_raw(void* memory) {
    if (!hooks::release(memory)) c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  }

  c10::Allocator& other_;
};

void install_cpu() {
  // Above LibTorch's own, which has priority 0.
  c10::SetCPUAllocator(new CpuAllocator(*c10::GetDefaultCPUAllocator()), 1);
}

}  // namespace

void install_allocator(DeviceKind kind) {
  hooks::Shared& s = hooks::shared();
  {
    const std::lock_guard lock(s.mutex);
    PROTRAIN_CHECK(!s.installed || s.kind == kind, "the allocator of one kind of device is installed");
    if (s.installed) return;
    s.installed = true;
    s.kind = kind;
    s.plain = kind == DeviceKind::kCuda
                  ? cuda_plain_memory()
                  : hooks::Plain{[](Bytes bytes) { return c10::alloc_cpu(bytes); }, &c10::free_cpu};
  }
  if (kind == DeviceKind::kCuda) {
    install_cuda_allocator();
  } else {
    install_cpu();
  }
}

Bytes make_library_workspaces(const Stream& stream, DeviceKind kind, std::byte* memory, Bytes bytes) {
  if (kind == DeviceKind::kCpu) return 0;
  hooks::Shared& s = hooks::shared();
  drop_cuda_workspaces();
  {
    const std::lock_guard lock(s.mutex);
    s.library = true;
    s.library_bytes = 0;
    s.library_next = memory;
    s.library_end = memory == nullptr ? nullptr : memory + bytes;
  }
  try {
    make_cuda_workspaces(stream);
  } catch (...) {
    const std::lock_guard lock(s.mutex);
    s.library = false;
    throw;
  }
  const std::lock_guard lock(s.mutex);
  s.library = false;
  return s.library_bytes;
}

void release_plain_memory(DeviceKind kind) {
  if (kind == DeviceKind::kCpu) return;
  drop_cuda_workspaces();
  drop_cuda_cache();
}

}  // namespace protrain
