#include "search/trials.h"

#include <algorithm>
#include <utility>

namespace protrain {

namespace {

// Half a second's worth of tasks on one core. A count and not a clock: the same question gets the same answer.
constexpr double kMostEffort = 45000;
constexpr int kRepairs = 3;

// By what a plan differs from others: slots beyond the chunks that rotate through them are no difference.
std::array<int, 13> key_of(const Space& space, const Point& point) {
  const int streamed = space.chunks(point).count() - point.slots.persist;
  return {point.size,
          static_cast<int>(point.order),
          point.counts.swap,
          point.counts.keep_light,
          point.counts.recompute,
          point.counts.recompute_host,
          space.offloads(point.counts) ? point.distance : 0,
          point.resident,
          static_cast<int>(point.embedding),
          static_cast<int>(point.head),
          point.slots.persist,
          std::min(point.slots.buffer, streamed),
          std::min(point.slots.gradient, space.places(point).hosts)};
}

}  // namespace

Trials::Trials(const Space& space, Candidates& candidates, const Profile& profile, const MemoryLimits& limits,
               const PredictOptions& options, const SearchLimits& search_limits)
    : space_(space),
      candidates_(candidates),
      profile_(profile),
      limits_(limits),
      options_(options),
      search_limits_(search_limits) {}

bool Trials::seen(const Point& point) const { return seen_.contains(key_of(space_, point)); }

bool Trials::exhausted() const {
  return static_cast<int>(all_.size()) >= search_limits_.simulations || (effort_ >= kMostEffort && best_ >= 0);
}

PlannedMemory Trials::planned(const Point& point) const {
  return plan_memory(space_.figures.spec, space_.figures.shape, profile_, space_.plan(point));
}

Prediction Trials::predicted(const PlannedMemory& memory, bool fold) const {
  PredictOptions options = options_;
  options.fold = fold;
  return predict(space_.figures.spec, memory.chunks, space_.figures.shape, profile_, memory.plan, memory.layout,
                 space_.figures.rates, options);
}

bool Trials::attempt(Point point, bool repair) {
  Bytes gap = 0;
  for (int round = 0; round <= (repair ? kRepairs : 0); ++round) {
    if (!seen_.insert(key_of(space_, point)).second) return false;
    const PlannedMemory memory = planned(point);
    ++layouts_;
    const MemoryNeed need(memory.layout);
    const Shortfall lacks = shortfall(need, limits_);
    const double size = 5.0 * space_.figures.blocks + 4.0 * static_cast<double>(memory.chunks.size());
    effort_ += size / 2;
    gap = std::max(gap, need.device - space_.need(point).device);
    candidates_.set_margin(gap);
    if (lacks.fits()) {
      const Prediction prediction = predicted(memory, true);
      effort_ += static_cast<double>(prediction.schedule.tasks.size());
      all_.push_back({point, prediction.step_seconds, prediction.busy});
      if (best_ < 0 || prediction.step_seconds < all_[static_cast<std::size_t>(best_)].seconds) {
        best_ = static_cast<int>(all_.size()) - 1;
      }
      return true;
    }
    if (!leanest_ || std::pair(lacks.device, lacks.host) < lacks_) {
      leanest_ = point;
      lacks_ = {lacks.device, lacks.host};
    }
    if (!repair) return false;
    const auto smaller = candidates_.shrink(point, gap);
    if (!smaller) return false;
    point = *smaller;
  }
  return false;
}

}  // namespace protrain
