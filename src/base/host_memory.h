// What this process uses of host memory, and what it may. Reads /proc and /sys on every call; thread-safe.
#pragma once
#include <filesystem>

#include "base/units.h"

namespace protrain {

struct HostMemory {
  Bytes resident = 0;  // now
  Bytes unfiled = 0;   // of that, not pages of files: RssAnon + RssShmem
  Bytes peak = 0;      // largest of `resident`, so with pages of files, since the start or restart_peak()
};
HostMemory host_memory(const std::filesystem::path& root = "/");  // root: where proc/ is, for tests
// `peak` begins anew: so that a run's is of its plan, and not of what the machine was measured with. Advice only.
void restart_peak();
// Its `unfiled`, memory that was freed given back to the kernel first.
Bytes settled_process_bytes();

// What a run may plan with: the smaller of host_memory_limit() and what the machine has left, this process's own memory
// included, less one part of kHostReserve: for the kernel's tables (8 bytes a page), what a GPU's driver keeps of
// pinned pages, and files that are read and written. A plan of about 124 of 125.9 GiB was killed (8b-killed.log in
// bench/results/plans_h200), one of 119.6 GiB ran (14b.runs.json).
inline constexpr Bytes kHostReserve = 32;
Bytes plannable_host_memory(const std::filesystem::path& root = "/");
// Of that: MemAvailable with this process's own; all of physical memory where the kernel does not say.
Bytes available_memory(const std::filesystem::path& root = "/");

}  // namespace protrain
