// A profile without the machine: memory and time of block calls from shapes alone. An estimate, marked as such. Pure;
// thread-safe.
#pragma once
#include "arch/architecture.h"
#include "schedule/rates_json.h"
#include "search/hardware.h"

namespace protrain {

// Every call that a run of this shape can make under any plan, as record_memory() would list them for CUDA.
// Rates::measured is false.
StoredProfile estimate_profile(const Architecture&, const ModelSpec&, const RunShape&, const Hardware&);

}  // namespace protrain
