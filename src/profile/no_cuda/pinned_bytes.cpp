#include "profile/pinned_bytes.h"

#include "base/error.h"

namespace protrain::profile {

std::shared_ptr<void> register_host_memory(std::byte*, Bytes) { PROTRAIN_CHECK(false, "a build without CUDA"); }

}  // namespace protrain::profile
