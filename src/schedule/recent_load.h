// How much the compute lane has worked of late, and what that does to its calls.
//
// Note [Recent load]: a card whose power is limited sets its clocks by the power of the last moments, not by that of
// the whole step. So a call takes its time from the share of time in which the lane worked before it, weighted with
// exp(-age / kMemory): at 1/2 or less its rested time, at 1 its steady time, linearly between, as they were measured
// (profile/call_times.h). kMemory: with it the compute lane of 17 plans on an H200 worked within 2 % as long as
// predicted, with one load for the whole step up to 4 % longer (bench/results/plans_h200/recent_load.log).
#pragma once
#include <algorithm>
#include <cmath>

namespace protrain {

class RecentLoad {
 public:
  static constexpr double kMemory = 0.1;  // seconds

  explicit RecentLoad(double load) : load_(load) {}
  void rest(double seconds) { load_ *= left(seconds); }
  void work(double seconds) { load_ = 1 - (1 - load_) * left(seconds); }
  double load() const { return load_; }
  // Of the way from rested to steady time, 0..1, for a call that takes about so long: as at its middle.
  double steady_share(double seconds) const { return std::clamp(1 - 2 * (1 - load_) * left(seconds / 2), 0.0, 1.0); }

 private:
  double left(double seconds) const { return seconds > 0 ? std::exp(-seconds / kMemory) : 1; }

  double load_;
};

}  // namespace protrain
