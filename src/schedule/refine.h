// Learns from a step that was measured: what tasks took there is a newer measurement than the profile's.
#pragma once
#include "schedule/simulate.h"

namespace protrain {

// `rates` with every kind of task (each call, those that make a graph alone apart; copies of each direction; updates,
// norms, roundings) scaled so that the simulation of this schedule gives the kind as much time in all as it took. Kinds
// that do not occur, or took no time, stay; fixed parts scale along. Pure; thread-safe.
Rates refine(const Rates& rates, const ModelSpec&, const std::vector<Chunk>&, const Schedule&, const BatchShape&,
             const Timeline& measured);

}  // namespace protrain
