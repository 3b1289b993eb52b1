// Host memory as the arenas have it (huge pages, touched from all nodes), pinned on CUDA, held while it lives: the
// device's pinned arena is taken once, by the run. Private to profile/.
#pragma once
#include <memory>

#include "device/device.h"
#include "device/host_mapping.h"

namespace protrain::profile {

class PinnedBytes {
 public:
  // Error(kDoesNotFit) when the system refuses.
  PinnedBytes(Bytes, DeviceKind);
  std::byte* get() const { return mapping_.data(); }

 private:
  HostMapping mapping_;
  std::shared_ptr<void> registration_;  // ends before the memory it covers
};

// In cuda/ and no_cuda/: registers the memory with the device until the result goes.
std::shared_ptr<void> register_host_memory(std::byte*, Bytes);

}  // namespace protrain::profile
