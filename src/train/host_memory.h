// What this process uses of host memory. Reads /proc on every call; thread-safe.
#pragma once
#include "base/units.h"

namespace protrain {

struct HostMemory {
  Bytes resident = 0;  // now
  Bytes unfiled = 0;   // of that, not pages of files: RssAnon + RssShmem
  Bytes peak = 0;      // largest so far
};
HostMemory host_memory();
// Its `unfiled`, memory that was freed given back to the kernel first.
Bytes settled_process_bytes();

}  // namespace protrain
