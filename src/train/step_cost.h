// Small pure functions of a step. Thread-safe.
#pragma once
#include <cstdint>

#include "arch/spec.h"
#include "data/loader.h"

namespace protrain {

// Model FLOPs (forward + backward) of a step's real tokens: attention counts within samples, padding not at all (its
// share is taken off evenly). host_batch: the step's micro-batches as BatchSource::fill wrote them.
double step_flops(const ModelSpec&, const StepBatch&, const std::byte* host_batch);

// Key of all dropout masks of an update, a function of the run's seed and the update's index.
std::uint64_t dropout_key(std::uint64_t seed, std::int64_t update);

}  // namespace protrain
