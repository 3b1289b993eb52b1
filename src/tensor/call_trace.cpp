#include "tensor/call_trace.h"

#include <algorithm>

#include "base/error.h"
#include "memory/packing.h"

namespace protrain {
namespace {

void pack_transients(CallTrace& trace) {
  std::vector<Allocation> lives;
  std::vector<std::int32_t> index;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(trace.allocations.size()); ++i) {
    const TracedAllocation& one = trace.allocations[static_cast<std::size_t>(i)];
    if (one.where != TraceClass::kTransient) continue;
    lives.push_back({one.bytes, {{one.born, one.died}}});
    index.push_back(i);
  }
  const Packing packing = pack(lives);
  trace.memory.workspace = packing.total;
  trace.memory.workspace_bound = packing.live_bound;
  for (std::size_t k = 0; k < index.size(); ++k) {
    TracedAllocation& one = trace.allocations[static_cast<std::size_t>(index[k])];
    one.offset = packing.offsets[k];
    for (std::size_t j = 0; j < k; ++j) {
      const Bytes first = packing.offsets[j], end = first + round_up(lives[j].bytes, kAlignment);
      if (first < one.offset + round_up(one.bytes, kAlignment) && one.offset < end) one.under.push_back(index[j]);
    }
  }
}

}  // namespace

CallTrace lay_out(std::vector<TracedAllocation> allocations, bool keeps) {
  CallTrace trace;
  trace.keeps = keeps;
  trace.allocations = std::move(allocations);
  for (TracedAllocation& one : trace.allocations) {
    if (one.died >= 0) continue;  // a transient or a result
    // A result that something of the call holds on to outlives the place that its reader may use again: it is copied.
    PROTRAIN_CHECK(keeps, "{} bytes outlive a call that keeps nothing", one.bytes);
    one.where = TraceClass::kSaved;
    one.result = -1;
    one.offset = trace.memory.saved;
    trace.memory.saved += round_up(one.bytes, kAlignment);
  }
  pack_transients(trace);
  return trace;
}

bool alike(const CallTrace& a, const CallTrace& b) {
  return std::equal(a.allocations.begin(), a.allocations.end(), b.allocations.begin(), b.allocations.end(),
                    [](const TracedAllocation& x, const TracedAllocation& y) {
                      return x.bytes == y.bytes && x.born == y.born && x.died == y.died && x.where == y.where &&
                             x.result == y.result && x.worker == y.worker;
                    });
}

CallMemory memory_of(const CallTrace& trace) { return trace.memory; }

}  // namespace protrain
