// What was measured of a model's blocks before a plan is made: here the memory of each call. Plain data; thread-safe.
#pragma once
#include <string>
#include <vector>

#include "block/block.h"

namespace protrain {

// Blocks with equal BlockSpec::trace, called with the same pass, mode and shape, allocate alike.
struct CallKey {
  std::string trace;
  Pass pass = Pass::kForward;
  bool light = false;
  BatchShape shape;
  bool training = true;  // evaluation has no dropout and asks for no gradients
  bool operator==(const CallKey&) const = default;
};

struct CallMemory {
  Bytes saved = 0;            // kForwardKeep: alive at the call's end, back to back
  Bytes workspace = 0;        // transients, packed
  Bytes workspace_bound = 0;  // largest sum of transients live at one time
};

struct Profile {
  struct Call {
    CallKey key;
    CallMemory memory;
  };
  std::vector<Call> calls;
  Bytes library_workspace = 0;  // what libraries keep on the device between calls (cuBLAS), part of the arena
  Bytes tables = 0;             // constants that all blocks read (rotary tables), part of the arena

  const CallMemory& find(const CallKey&) const;  // InternalError when absent
};

}  // namespace protrain
