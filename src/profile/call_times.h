// Times of every kind of block call. Private to profile/.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "profile/block_rig.h"
#include "schedule/rates.h"

namespace protrain::profile {

// How the time is spent, in seconds.
//
// Note [Duty cycles]: a card whose power is limited lowers its clocks when it never rests, and takes seconds to settle.
// So calls are timed under two loads. Steady: behind each other without a pause, after `warm` of a layer's forward and
// backward, which also runs between the calls of lighter blocks. Rested: a pause after each call (a backward goes with
// its forward) that is as long as the call. The CPU device is timed under the first alone, and not warmed.
struct CallPace {
  bool duty_cycles = false;
  double warm = 0;    // before the first steady call
  double settle = 0;  // before the steady calls of all further kinds of block together, shared as their time is
  double cool = 0;    // before the first rested call
  double steady = 0;  // of all kinds
  double rested = 0;  // of all kinds
  double heat = 0;    // of load between two rounds of a kind
  int rounds = 5;     // of a kind, at most
};

// `budget`: bytes of the device for a second block beside the one timed. Keys as in `memory`, in its order. Calls that
// `known` has are taken from there.
std::vector<Rates::Call> call_times(const RigModel&, const Device&, Stream&, Bytes budget, const CallPace&,
                                    std::span<const Rates::Call> known,
                                    const std::function<void(const std::string&)>& progress);

// How the time is shared among kinds; the sum is 1. A step is mostly layers, at the shape with the most tokens: the
// fewer tokens, and the fewer calls of a step, the less an error weighs.
std::vector<double> time_shares(const RigModel&, const std::vector<RigKind>&);

}  // namespace protrain::profile
