// The order in which micro-batches walk through the blocks. Internal to schedule/.
#pragma once
#include <vector>

#include "schedule/schedule.h"

namespace protrain {

// A block's turn with one micro-batch: its forward, or its backward with the forward again before it. The head has a
// backward only in training (it does both in one go), a forward in evaluation.
struct Visit {
  Id block = -1;
  Id micro_batch = 0;
  bool backward = false;
  bool present = true;  // false: this step has fewer micro-batches
};

// kMicroBatch order: those of the step. kLayer order: those of the largest planned step, so that a shorter one keeps
// all others at their places: what the layout knows of lives then holds for it too.
std::vector<Visit> visits(Id blocks, Order, Graph, std::int64_t micro_batches, std::int64_t planned);

}  // namespace protrain
