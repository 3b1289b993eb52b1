// How much lanes slow each other down. Private to profile/.
#pragma once
#include <vector>

#include "profile/stopwatch.h"

namespace protrain::profile {

// What a lane does while others work beside it: one piece over and over.
struct LaneLoad {
  Lane lane = Lane::kCompute;
  Stream* stream = nullptr;
  Work work;
  bool own_thread = true;  // else only the calling thread may issue it: at most one load
  // Its speed alone changes meanwhile, with the clocks that it heats or with what else uses the host's memory: it is
  // timed alone right before each of its pairs.
  bool drifts = false;
};

struct OverlapPace {
  double settle = 0;  // seconds of work before the window
  double window = 0;  // seconds that are looked at, or as long as one piece of each lane takes
  double warm = 0;    // more of `settle` before the first window of a load without a thread: clocks follow power slowly
};

// By pair of loads: seconds of a piece of the first while the second works / alone; at least 1. Each pair runs once.
// Rows and columns of lanes without a load are 1. In all windows(loads) times settle + window, and `warm`.
int windows(const std::vector<LaneLoad>&);
std::array<std::array<double, kLanes>, kLanes> slowdowns(const Device&, const std::vector<LaneLoad>&,
                                                         const OverlapPace&);

}  // namespace protrain::profile
