// What this process uses of host memory, and what it may. Reads /proc and /sys on every call; thread-safe.
#pragma once
#include <filesystem>

#include "base/units.h"

namespace protrain {

struct HostMemory {
  Bytes resident = 0;  // now
  Bytes unfiled = 0;   // of that, not pages of files: RssAnon + RssShmem
  Bytes peak = 0;      // largest so far
};
HostMemory host_memory(const std::filesystem::path& root = "/");  // root: where proc/ is, for tests
// Its `unfiled`, memory that was freed given back to the kernel first.
Bytes settled_process_bytes();

// What a run may plan with: the smaller of host_memory_limit() and what the machine has left, this process's own memory
// included, less one part of kHostReserve. The kernel's tables take 8 bytes a page, a GPU's driver up to 48 a pinned
// page, and files are read and written through the rest.
inline constexpr Bytes kHostReserve = 32;
Bytes plannable_host_memory();
// Of that: MemAvailable with this process's own; all of physical memory where the kernel does not say.
Bytes available_memory(const std::filesystem::path& root = "/");

}  // namespace protrain
