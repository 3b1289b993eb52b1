// How long a step's graph may be: what validate() refuses, for those who choose plans. Pure; thread-safe.
#pragma once
#include "plan/plan.h"

namespace protrain {

// Micro-batches a step, in this order.
std::int64_t most_accumulation(const ModelSpec&, Order);

}  // namespace protrain
