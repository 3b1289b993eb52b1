#include "train/forecast.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace protrain {
namespace {

// The first steps load and warm what later ones find ready.
constexpr std::int64_t kWarmUpSteps = 3, kEarlySteps = 10;
// Lanes that work less than this share of the step are not worth a word.
constexpr double kIdle = 0.001;

}  // namespace

Forecast::Forecast(std::int64_t interval) : interval_(interval) {}

void Forecast::expect(const Prediction& prediction) {
  step_seconds_ = prediction.step_seconds;
  busy_ = prediction.busy;
  in_row_ = 0;
}

bool Forecast::wants_trace() const {
  if (interval_ == 0) return false;
  const std::int64_t next = steps_ + 1;
  return next % interval_ == 0 || (next == kEarlySteps && interval_ > kEarlySteps);
}

std::optional<ForecastError> Forecast::step(double seconds, bool full, const Timeline* timeline) {
  const bool ends = wants_trace();
  ++steps_;
  if (full && steps_ > kWarmUpSteps) measured_.push_back(seconds);
  if (!ends || !full || timeline == nullptr || measured_.empty() || step_seconds_ <= 0) return std::nullopt;

  ForecastError error;
  const auto middle = measured_.begin() + static_cast<std::ptrdiff_t>(measured_.size() / 2);
  std::ranges::nth_element(measured_, middle);
  error.measured_seconds = *middle;
  error.steps = static_cast<std::int64_t>(measured_.size());
  error.step = *middle / step_seconds_ - 1;
  measured_.clear();
  std::array<double, kLanes> busy{};
  for (const Span& span : timeline->spans) {
    busy[static_cast<std::size_t>(span.lane)] += span.end_seconds - span.begin_seconds;
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (busy_[lane] > kIdle * step_seconds_) error.lanes[lane] = busy[lane] / busy_[lane] - 1;
  }
  in_row_ = std::abs(error.step) > kLarge ? in_row_ + 1 : 0;
  return error;
}

std::string Forecast::describe(const ForecastError& error) const {
  std::string lanes;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (!error.lanes[lane]) continue;
    lanes += fmt::format("{}{} {:+.1f} %", lanes.empty() ? "; lanes " : ", ", lane_name(static_cast<Lane>(lane)),
                         100 * *error.lanes[lane]);
  }
  return fmt::format("{:.4g} s a step predicted, {:.4g} s measured ({:+.1f} %, median of {}){}", step_seconds_,
                     error.measured_seconds, 100 * error.step, error.steps, lanes);
}

}  // namespace protrain
