#include "profile/pinned_bytes.h"

namespace protrain::profile {

PinnedBytes::PinnedBytes(Bytes bytes, DeviceKind kind) : mapping_(bytes) {
  mapping_.touch();
  if (kind == DeviceKind::kCuda) registration_ = register_host_memory(mapping_.data(), mapping_.bytes());
}

}  // namespace protrain::profile
