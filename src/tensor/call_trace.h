// The allocations of one kind of call, laid out. Internal to tensor/.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/replay.h"

namespace protrain {

// Whose memory an allocation lies in.
enum class TraceClass : std::uint8_t { kTransient, kSaved, kResult };

struct TracedAllocation {
  Bytes bytes = 0;         // as asked for
  std::int32_t born = 0;   // its number among the call's allocations
  std::int32_t died = -1;  // the number of the first allocation after its release; -1: alive at the call's end
  TraceClass where = TraceClass::kTransient;
  int result = -1;                       // kResult: which
  Bytes offset = 0;                      // inside its class's memory; 0 of a result
  bool worker = false;                   // made by autograd's device thread, not by the calling one
  std::vector<std::int32_t> under = {};  // earlier transients that share bytes with it: they have died by now
};

class CallTrace {
 public:
  std::vector<TracedAllocation> allocations;  // in order
  CallMemory memory;
  bool keeps = false;
};

// Gives every allocation its class (results have theirs) and offset. Internal error when a call that keeps nothing
// leaves something alive.
CallTrace lay_out(std::vector<TracedAllocation>, bool keeps);

// Whether two recordings of one kind of call agree in everything that replay relies on.
bool alike(const CallTrace&, const CallTrace&);

}  // namespace protrain
