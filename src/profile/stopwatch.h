// How long work takes on a device's stream. Private to profile/.
#pragma once
#include <chrono>
#include <functional>
#include <vector>

#include "schedule/rates.h"

namespace protrain::profile {

using Clock = std::chrono::steady_clock;

using Work = std::function<void(Stream&)>;  // issues one piece

// InternalError for no values; of two in the middle the smaller.
double median(std::vector<double>);

// One piece alone, the stream empty before it: the median of as many as fit into `seconds`, at least one, after one
// that does not count.
double time_alone(const Device&, Stream&, const Work&, double seconds);

// One piece of work that went on for `settle` seconds before: the mean over `window` seconds, at least one piece. For
// what depends on memory that others use too: its speed changes within half a second (host_drift.log in
// bench/results/plans_h200), and a run meets the mean.
double time_sustained(const Device&, Stream&, const Work&, double settle, double window);

// The line through two points; through the origin where they do not rise. Never negative.
Rates::Linear fit(double small_units, double small_seconds, double large_units, double large_seconds);

// A copy of up to `large` bytes, from two sizes. Host memory is pinned.
Rates::Linear copy_time(const Device&, Stream&, std::byte* to, const std::byte* from, Bytes large, double seconds);

}  // namespace protrain::profile
