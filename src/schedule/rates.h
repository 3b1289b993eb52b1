// What tasks cost on one machine: measured (profile/) or estimated from a few figures of the hardware (search/). Plain
// data; thread-safe.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace protrain {

struct Rates {
  // One block call alone on its lane. A device whose power is limited is slower when it never rests.
  struct Call {
    CallKey key;
    double steady =
        0;  // seconds, when calls follow each other without a pause for as long as it takes clocks to settle
    double rested = 0;  // seconds, when the device rests about half of the time; at most `steady`
    // kForwardKeep of a layer: time without its result (BlockCall::output null: recompute) / with it. Positive; at most
    // 1 where it was measured or estimated, but refine() may find more. 1 for all other calls.
    double graph_alone = 1;
  };
  // seconds + units x per_unit
  struct Linear {
    double seconds = 0;
    double per_unit = 0;
    double of(double units) const { return seconds + units * per_unit; }
  };

  std::string source;     // "NVIDIA H200, measured", "estimate from hardware/h200.json"
  bool measured = false;  // else an estimate, and everything made from it says so
  std::vector<Call> calls;
  Linear h2d, d2h;                // unit: byte, of a copy alone on its link
  Linear cpu_update, gpu_update;  // unit: element of the chunk
  Linear norm, round;             // unit: element of the chunk
  double finish_norm = 0;         // seconds
  double between_steps = 0;       // seconds of the host alone, once a step
  // slowdown[a][b]: a task of lane a takes this many times as long while lane b works; 1 where they do not touch.
  std::array<std::array<double, kLanes>, kLanes> slowdown = no_slowdown();

  static constexpr std::array<std::array<double, kLanes>, kLanes> no_slowdown() {
    std::array<std::array<double, kLanes>, kLanes> all{};
    for (auto& row : all) row.fill(1);
    return all;
  }
  // InternalError when absent.
  const Call& find(const CallKey&) const;
};

// A call that takes Rates::Call::graph_alone of its time.
bool makes_graph_alone(const Task&);

// For runs of other shapes that nobody has timed: calls of `profile` that `rates` does not have take the time of the
// same call at another shape, by the tokens. InternalError where there is none.
Rates with_calls_of(const Rates& rates, const Profile& profile);

}  // namespace protrain
