#include "search/explain.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace protrain {

namespace {

bool same_but_slots(const Point& a, const Point& b) {
  const auto key = [](const Point& point) {
    return std::tuple(point.size, point.order, point.counts.swap, point.counts.keep_light, point.counts.recompute,
                      point.counts.recompute_host, point.resident, point.embedding, point.head, point.slots.persist);
  };
  return key(a) == key(b);
}

// The lane that has more to do than in the other plan, or that it works nearly without a pause. `more_on_host`: of the
// parameters, that only it updates there.
std::string reason(const Trial& lost, const Trial& won, double more_on_host) {
  std::size_t busiest = 0;
  std::size_t grown = 0;
  for (std::size_t lane = 1; lane < kLanes; ++lane) {
    if (lost.busy[lane] > lost.busy[busiest]) busiest = lane;
    if (lost.busy[lane] - won.busy[lane] > lost.busy[grown] - won.busy[grown]) grown = lane;
  }
  const double slower = lost.seconds - won.seconds;
  constexpr double kAsFast = 5e-4;  // relative
  if (slower < kAsFast * won.seconds) {
    const std::string host = fmt::format("updates of {:.1f} % more of the parameters on the host", 100 * more_on_host);
    if (slower <= -kAsFast * won.seconds) {
      const std::string how = fmt::format("{:.1f} % faster", -100 * slower / won.seconds);
      return more_on_host > 0 ? fmt::format("{}, which does not make up for {}", how, host)
                              : how + " with equal micro-batches folded, not with each walked";
    }
    return more_on_host >= 5e-4 ? "as fast, with " + host : "as fast: the one found first is kept";
  }
  const std::string how = fmt::format("{:.1f} % slower", 100 * slower / won.seconds);
  const auto name = [](std::size_t lane) { return lane_name(static_cast<Lane>(lane)); };
  const double more = lost.busy[grown] - won.busy[grown];
  const auto compute = static_cast<std::size_t>(Lane::kCompute);
  const double computes_more = lost.busy[compute] - won.busy[compute];
  if (slower > 0 && computes_more >= slower / 2) {
    return fmt::format("{}: compute works {:.1f} ms more", how, 1e3 * computes_more);
  }
  if (busiest != compute) {
    return fmt::format("{}: {} works {:.0f} % of the step", how, name(busiest),
                       100 * lost.busy[busiest] / lost.seconds);
  }
  if (more >= slower / 2) return fmt::format("{}: {} works {:.1f} ms more", how, name(grown), 1e3 * more);
  return fmt::format("{}: compute waits {:.1f} ms longer", how, 1e3 * std::max(0.0, slower - computes_more));
}

}  // namespace

std::optional<RunnerUp> runner_up(const Space& space, const Trials& trials, const Trial& chosen, double seconds) {
  const Trial* best = nullptr;
  for (const Trial& trial : trials.all()) {
    if (same_but_slots(trial.point, chosen.point)) continue;
    if (best == nullptr || trial.seconds < best->seconds) best = &trial;
  }
  if (best == nullptr) return std::nullopt;
  const double more_on_host = space.host_share(best->point) - space.host_share(chosen.point);
  return RunnerUp{space.plan(best->point), best->seconds / chosen.seconds * seconds,
                  reason(*best, chosen, more_on_host)};
}

std::string binding_limit(const Space& space, Candidates& candidates, const MemoryLimits& limits, const Point& chosen,
                          const std::array<double, kLanes>& busy) {
  constexpr double kBetter = 1e-4;  // relative
  constexpr double kNearly = 0.9;   // of a limit; a bound is below what a layout takes
  const double now = candidates.bounded(chosen).time.likely;
  std::vector<Point> others;
  for (const ActivationCounts& counts : candidates.other_modes(chosen.counts)) {
    others.push_back(chosen);
    others.back().counts = counts;
  }
  for (const int resident : {chosen.resident - 1, chosen.resident + 1}) {
    Point other = chosen;
    other.resident = resident;
    const Choices residents = space.residents(chosen.size);
    if (resident < residents.least || resident > residents.most) continue;
    const Choices persists = space.persists(other);
    if (persists.empty()) continue;
    other.slots.persist = persists.clamp(other.slots.persist);
    others.push_back(other);
  }
  Point other = chosen;
  other.slots.persist = space.persists(chosen).clamp(chosen.slots.persist + 1);
  others.push_back(other);
  other = chosen;
  other.embedding = space.embeddings.front();
  other.head = space.heads.front();
  others.push_back(other);
  bool device = false;
  bool host = false;
  for (Point& one : others) {
    const Choices buffers = space.buffers(one);
    const Choices gradients = space.gradients(one);
    if (buffers.empty() || gradients.empty()) continue;
    one.slots.buffer = buffers.clamp(one.slots.buffer);
    one.slots.gradient = gradients.clamp(one.slots.gradient);
    if (candidates.bounded(one).time.likely >= now * (1 - kBetter)) continue;
    // Its bound may fit where its layout did not: it needs more all the same, and nearly all that there is.
    const MemoryNeed need = space.need(one);
    const MemoryNeed have = space.need(chosen);
    const auto lacks = [](Bytes of, Bytes limit) {
      return static_cast<double>(of) > kNearly * static_cast<double>(limit);
    };
    device = device || (need.device > have.device && lacks(device_need(need, limits), limits.device));
    host = host || (need.device <= have.device && need.pinned + need.pageable > have.pinned + have.pageable &&
                    lacks(host_need(need, limits), limits.host));
  }
  if (device) return "device memory";
  if (host) return "host memory";
  const auto most = std::max_element(busy.begin(), busy.end()) - busy.begin();
  return std::string(lane_name(static_cast<Lane>(most)));
}

}  // namespace protrain
