// What this process may use of the machine: limits of its control groups (v1 and v2), along their ancestry.
// Reads files under /proc and /sys on every call; thread-safe. A file that is not there is no limit.
#pragma once
#include <filesystem>
#include <optional>

#include "base/units.h"

namespace protrain {

struct CgroupLimits {
  std::optional<double> cores;  // CPU quota / period
  std::optional<Bytes> memory;
};
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");  // root: where proc/ and sys/ are, for tests

Bytes physical_memory();
Bytes host_memory_limit();  // the smaller of physical memory and the cgroup's limit

}  // namespace protrain
