#include "search/trials.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "schedule/layout.h"

namespace protrain {

namespace {

// About a third of a second on one core; up to kMostTimes that for steps by layers of more than kFewMicroBatches: each
// plan takes longer. Counted and not timed: the same question gets the same answer. In microseconds, measured once: a
// task laid out; one simulated; a pair of regions that are laid out.
constexpr double kMostEffort = 3.2e5, kMostEffortOfFew = 3.5e4;
constexpr double kFewMicroBatches = 8, kMostTimes = 12;
constexpr double kFewPlans = 1e9;  // in a space
constexpr double kLaidOut = 1.2, kSimulated = 2.3, kPair = 7e-4;
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

// What a layout cannot go below, however careful; of the host's tiers that is not known.
bool may_lack_less(const Layout& layout, const MemoryLimits& limits, const Lack& than) {
  MemoryNeed need(layout);
  need.device = std::min(need.device, layout.live_bound - (kAlignment - 1));
  const Shortfall least = shortfall(need, limits);
  return least.host > 0 || Lack{least.device, least.host} < than;
}

}  // namespace

Trials::Trials(const Space& space, Candidates& candidates, const Profile& profile, const MemoryLimits& limits,
               const PredictOptions& options, const SearchLimits& search_limits)
    : space_(space),
      candidates_(candidates),
      profile_(profile),
      limits_(limits),
      options_(options),
      search_limits_(search_limits),
      most_effort_(space.count() < kFewPlans ? kMostEffortOfFew : kMostEffort) {
  if (std::ranges::find(space.orders, Order::kLayer) != space.orders.end()) {
    const double times = static_cast<double>(space.figures.micro_batches) / kFewMicroBatches;
    most_effort_ *= std::clamp(times * std::sqrt(times), 1.0, kMostTimes);
  }
  if (space.count() <= search_limits.enumerate) most_effort_ = kMostEffort;  // they were promised to be looked at
}

bool Trials::seen(const Point& point) const { return seen_.contains(key_of(space_, point)); }

// Steps by layers are seldom folded, so that of many micro-batches each plan takes as long as a hundred of the other
// order: what the one spends leaves the other half of the effort.
bool Trials::exhausted(Order order, double share) const {
  const double half = most_effort_ / 2;
  double budget = most_effort_;
  if (space_.orders.size() > 1) {
    const Order other = order == Order::kLayer ? Order::kMicroBatch : Order::kLayer;
    budget = std::max(half, most_effort_ - effort_.at(other));
  }
  return static_cast<int>(all_.size()) >= search_limits_.simulations ||
         (effort_.at(order) >= share * budget && best_ >= 0);
}

bool Trials::exhausted(double share) const {
  return std::ranges::all_of(space_.orders, [&](Order order) { return exhausted(order, share); });
}

double Trials::expected(const Candidate& candidate) const {
  const auto found = beyond_.find(candidates_.kind_of(candidate.point));
  return candidate.rank() * (found == beyond_.end() ? 1 : found->second);
}

PlannedMemory Trials::planned(const Point& point) const {
  return plan_memory(space_.figures.spec, space_.figures.shape, profile_, space_.plan(point));
}

PlannedMemory Trials::sketched(const Point& point) const {
  PlannedMemory memory;
  memory.plan = space_.plan(point);
  memory.chunks = space_.chunks(point).chunks;
  memory.layout =
      layout(space_.figures.spec, memory.chunks, space_.figures.shape, profile_, memory.plan, PackEffort::kQuick);
  memory.plan.predicted_device_bytes = memory.layout.bytes(Tier::kDevice);
  return memory;
}

Prediction Trials::predicted(const PlannedMemory& memory, bool fold) const {
  PredictOptions options = options_;
  options.fold = fold;
  return predict(space_.figures.spec, memory.chunks, space_.figures.shape, profile_, memory.plan, memory.layout,
                 space_.figures.rates, options);
}

int Trials::attempt(Point point, Care care) {
  Bytes gap = 0;
  for (int round = 0; round <= kRepairs; ++round) {
    const auto [seen, fresh] = seen_.try_emplace(key_of(space_, point), false);
    if (!fresh && (seen->second || care != Care::kExact)) return -1;
    seen->second = care == Care::kExact;
    PlannedMemory memory = sketched(point);
    ++layouts_;
    Shortfall lacks = shortfall(MemoryNeed(memory.layout), limits_);
    const auto regions = static_cast<double>(memory.layout.entries.size());
    if (care == Care::kExact && !lacks.fits()) {
      if (leanest_ && !may_lack_less(memory.layout, limits_, lacks_)) return -1;
      memory = planned(point);
      ++careful_;
      careful_pairs_ += regions * regions;
      lacks = shortfall(MemoryNeed(memory.layout), limits_);
    }
    effort_[point.order] += kLaidOut * regions + kPair * regions * regions;
    gap = std::max(gap, memory.layout.bytes(Tier::kDevice) - space_.need(point).device);
    candidates_.set_margin(gap);
    if (lacks.fits()) {
      seen->second = true;
      const Prediction prediction = predicted(memory, true);
      effort_[point.order] += kSimulated * static_cast<double>(prediction.schedule.tasks.size());
      const double score = prediction.step_seconds * (1 + search_limits_.caution * space_.host_share(point));
      const double beyond = prediction.step_seconds / std::max(candidates_.bounded(point).time.likely, 1e-12);
      const auto [kind, first] = beyond_.try_emplace(candidates_.kind_of(point), beyond);
      if (!first) kind->second = (kind->second + beyond) / 2;
      all_.push_back({point, prediction.step_seconds, score, prediction.busy});
      if (best_ < 0 || score < all_[static_cast<std::size_t>(best_)].score) {
        best_ = static_cast<int>(all_.size()) - 1;
      }
      return static_cast<int>(all_.size()) - 1;
    }
    const Lack lack = {lacks.device, lacks.host};
    if (!leanest_ || lack < lacks_) {
      leanest_ = point;
      lacks_ = lack;
    }
    if (care != Care::kRepair) return -1;
    const auto smaller = candidates_.shrink(point, gap);
    if (!smaller) return -1;
    point = *smaller;
  }
  return -1;
}

}  // namespace protrain
