// Closed-form lower bounds of a plan's bytes and of its step's time: never above what layout() and predict() find
// (a folded prediction may differ from predict() by its own error). Internal to search/. Pure.
//
// Note [Phases]: a step is cut at the turns of its micro-batches: where the head's call begins, and where the last
// backward ends. What has to lie between two cuts, on whichever lane, cannot take less time together than any lane of
// it alone. Before the first turn lie all first loads and, with clip, all pending updates; a load in backward follows
// the backward of the chunk that shares its slot, a load in a later forward the forward of that one; gradients
// leave after the last turn. Copies of saved sets and inputs are counted in the lanes' totals alone; the likely time
// has them, too, beside the calls from their first to their last layer, and transfers that find no slot to spare alone.
#pragma once
#include "search/chunk_set.h"

namespace protrain {

// The knobs that are left when chunks, places, modes and order are fixed.
struct SlotKnobs {
  int persist = 0;   // at least PlaceSums::least_persist
  int buffer = 0;    // at least ChunkSet::fewest[persist]
  int gradient = 0;  // at least PlaceSums::least_gradient_slots
};

struct MemoryBound {
  Bytes device = 0, pinned = 0, pageable = 0;
};
MemoryBound memory_bound(const ChunkSet&, const PlaceSums&, const ActivationSums&, const SlotKnobs&);
// Of it, what the device holds beside the regions of chunks that `persist` and `buffer` rule over.
Bytes device_without_body(const ChunkSet&, const PlaceSums&, const ActivationSums&, int gradient_slots);
Bytes body_weights(const ChunkSet&, const PlaceSums&, int persist, int buffer);

struct TimeBound {
  double least = 0;     // no plan is faster
  double likely = 0;    // the same closed form, with the compute time that the simulation will probably settle on
  double pressure = 0;  // seconds that all lanes but compute work: of equal plans the one with less of it
};
TimeBound time_bound(const ChunkSet&, const PlaceSums&, const ActivationSums&, Order, const SlotKnobs&);

}  // namespace protrain
