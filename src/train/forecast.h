// Holds what was predicted of a step against what is measured while the run goes on. One thread.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedule/simulate.h"

namespace protrain {

// Share by which something took longer than predicted.
struct ForecastError {
  double step = 0;
  std::array<std::optional<double>, kLanes> lanes;  // busy time of lanes that either side has used
  double measured_seconds = 0;                      // median step of the interval
  std::int64_t steps = 0;                           // of the interval
};

class Forecast {
 public:
  static constexpr double kLarge = 0.10;
  static constexpr int kLasting = 3;  // intervals in a row

  // Compares every `interval` steps of this process, and once early; 0: never.
  explicit Forecast(std::int64_t interval);
  // From here on; also the count of lasting() starts again.
  void expect(const Prediction&);

  // Whether the next step ends an interval: it has to be traced.
  bool wants_trace() const;
  // A step was made: `full`, of the shape and the micro-batches that were predicted. The interval's end comes with its
  // timeline; nothing is returned for other steps, and where no full step was seen.
  std::optional<ForecastError> step(double seconds, bool full, const Timeline* timeline);

  // The last kLasting intervals were all off by more than kLarge.
  bool lasting() const { return in_row_ >= kLasting; }

  double step_seconds() const { return step_seconds_; }
  std::string describe(const ForecastError&) const;  // one line for the log

 private:
  double step_seconds_ = 0;
  std::array<double, kLanes> busy_{};
  const std::int64_t interval_;
  std::int64_t steps_ = 0;        // of this process
  std::vector<double> measured_;  // full steps of this interval
  int in_row_ = 0;
};

}  // namespace protrain
