// What this process may use of the machine: limits of its control groups (v1 and v2), along their ancestry, and its
// own resource limits.
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
// The smallest of physical memory, the cgroup's limit, and what RLIMIT_AS and RLIMIT_DATA (ulimit -v, -d) leave: those
// count addresses, so what is mapped but not resident is taken off.
Bytes host_memory_limit();

}  // namespace protrain
