#include "search/search.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/error.h"
#include "search/explain.h"

namespace protrain {

namespace {

constexpr int kBatch = 5;             // plans around the best one that are simulated before it may move
constexpr int kIdleBatches = 3;       // without a better one: the end
constexpr double kFirstLook = 0.5;    // share of the effort after which no more kinds are looked at
constexpr double kFirstClimb = 0.65;  // and after which the first climb ends
constexpr double kHopeless = 1.3;     // the best of a kind is not simulated where it should take so much longer
constexpr double kTooFar = 1.15;      // nor is it climbed from where it is so much slower
constexpr double kStep = 1e-4;        // relative: what counts as better
constexpr int kMostLayouts = 3000;    // of a space whose plans are all looked at
constexpr int kMostCareful = 100;     // where nothing fits
constexpr double kMostPairs = 2e9;    // likewise, of regions, where by its bound nothing can: a second or so
constexpr int kFruitless = 30;        // plans of the grid that do not fit

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Search {
 public:
  Search(const Space& space, const Profile& profile, const MemoryLimits& limits, const PredictOptions& options,
         const SearchLimits& search_limits)
      : space_(space),
        limits_(limits),
        search_limits_(search_limits),
        candidates_(space, limits),
        trials_(space, candidates_, profile, limits, options, search_limits) {}

  SearchResult run(double started) {
    result_.space = space_.count();
    if (const auto simplest = space_.simplest(); simplest && candidates_.missing(*simplest).fits()) {
      trials_.attempt(*simplest, Trials::Care::kNone);
    }
    if (result_.space <= search_limits_.enumerate) {
      enumerate(started);
    } else {
      refine_grid(started);
    }
    finish();
    result_.bounded = candidates_.count();
    result_.simulated = static_cast<int>(trials_.all().size());
    result_.seconds = now() - started;
    return std::move(result_);
  }

 private:
  double to_beat() const {
    const Trial* best = trials_.best();
    return best == nullptr ? 1e300 : best->seconds * (1 - search_limits_.tolerance);
  }

  void enumerate(double started) {
    std::vector<Candidate> fitting;
    std::vector<Lean> all;
    for (const Point& point : space_.all()) {
      const Shortfall lacks = candidates_.missing(point);
      if (lacks.fits()) fitting.push_back(candidates_.bounded(point));
      all.push_back({{lacks.device, lacks.host}, point});
    }
    std::ranges::stable_sort(fitting, {}, &Candidate::rank);
    result_.bound_seconds = now() - started;
    for (const Candidate& candidate : fitting) {
      if (trials_.exhausted() || trials_.layouts() >= kMostLayouts) break;
      if (candidate.time.least < to_beat()) trials_.attempt(candidate.point, Trials::Care::kExact);
    }
    if (trials_.best() != nullptr) return;
    std::ranges::stable_sort(all, {}, &Lean::lacks);
    attempt_leanest(all);
  }

  // Where nothing has fitted: until one does, or no bound lacks less than the best layout. Where even the bounds lack,
  // only the figure of a message is at stake.
  void attempt_leanest(const std::vector<Lean>& lean) {
    const int careful = trials_.careful_layouts();
    const double pairs = trials_.careful_pairs();
    for (const Lean& one : lean) {
      if (trials_.best() != nullptr || trials_.careful_layouts() - careful >= kMostCareful) return;
      if (trials_.leanest() != nullptr && one.lacks >= trials_.least_lack()) return;
      if (one.lacks > Lack{} && trials_.careful_pairs() - pairs >= kMostPairs) return;
      trials_.attempt(one.point, Trials::Care::kExact);
    }
  }

  void refine_grid(double started) {
    const std::vector<Candidate> grid = candidates_.grid();
    result_.bound_seconds = now() - started;
    // The most promising of each kind first.
    std::set<Kind> kinds;
    for (const Candidate& candidate : grid) {
      if (!kinds.insert(candidates_.kind_of(candidate.point)).second) continue;
      if (trials_.exhausted(candidate.point.order, kFirstLook)) continue;
      if (candidate.time.likely < kHopeless * to_beat()) trials_.attempt(candidate.point, Trials::Care::kRepair);
    }
    for (int i = 0; i < std::min<int>(kFruitless, static_cast<int>(grid.size())); ++i) {
      if (trials_.best() != nullptr) break;
      trials_.attempt(grid[static_cast<std::size_t>(i)].point, Trials::Care::kRepair);
    }
    if (trials_.best() == nullptr) attempt_leanest(candidates_.leanest());
    if (trials_.best() != nullptr) climb_all();
  }

  // From the best, then from the best of each other kind than those that were climbed from and led to.
  void climb_all() {
    std::set<Kind> climbed;
    double share = kFirstClimb;
    while (!trials_.exhausted()) {
      const Trial* start = nullptr;
      for (const Trial& trial : trials_.all()) {
        if (climbed.contains(candidates_.kind_of(trial.point)) || trials_.exhausted(trial.point.order)) continue;
        if (start == nullptr || trial.score < start->score) start = &trial;
      }
      if (start == nullptr || start->score > kTooFar * trials_.best()->score) break;
      climbed.insert(candidates_.kind_of(start->point));
      climbed.insert(candidates_.kind_of(climb(Trial(*start), share)));
      share = 1;
    }
    climb(Trial(*trials_.best()), 1);
  }

  // To better ones around it, until there is none or `share` of the effort is spent.
  Point climb(Trial at, double share) {
    bool moved = true;
    while (moved && !trials_.exhausted(share)) {
      moved = false;
      std::vector<std::pair<double, Point>> around;
      for (const Candidate& candidate : candidates_.around(at.point)) {
        if (candidate.time.likely < at.seconds * (1 - search_limits_.tolerance)) {
          around.emplace_back(trials_.expected(candidate), candidate.point);
        }
      }
      std::ranges::stable_sort(around, {}, &std::pair<double, Point>::first);
      Trial best = at;
      int tried = 0;
      for (const auto& [expected, point] : around) {
        if (trials_.exhausted(share) || tried >= kBatch * kIdleBatches) break;
        if (trials_.seen(point) || trials_.exhausted(point.order, share)) continue;
        if (const int index = trials_.attempt(point, Trials::Care::kRepair); index >= 0) {
          const Trial& trial = trials_.all()[static_cast<std::size_t>(index)];
          if (trial.score < best.score) best = trial;
        }
        moved = best.score < at.score * (1 - kStep);
        if (++tried % kBatch == 0 && moved) break;
      }
      at = best;
    }
    return at.point;
  }

  // Of the fastest of each order the one that stays so when no micro-batch is folded; as it will run.
  const Trial* choose() {
    std::vector<const Trial*> ranked;
    for (const Trial& trial : trials_.all()) ranked.push_back(&trial);
    std::ranges::stable_sort(ranked, {}, &Trial::score);
    std::vector<std::pair<double, const Trial*>> finalists;
    for (const Order order : space_.orders) {
      const auto best = std::ranges::find(ranked, order, [](const Trial* trial) { return trial->point.order; });
      if (best == ranked.end()) continue;
      const bool alone = space_.orders.size() == 1 || space_.figures.micro_batches <= 3;
      finalists.emplace_back(alone ? (*best)->score
                                   : trials_.predicted(trials_.sketched((*best)->point), false).step_seconds *
                                         (*best)->score / (*best)->seconds,
                             *best);
    }
    std::ranges::stable_sort(finalists, {}, &std::pair<double, const Trial*>::first);
    for (std::size_t i = 0; i < finalists.size(); ++i) ranked.insert(ranked.begin() + i, finalists[i].second);
    for (const Trial* trial : ranked) {
      result_.memory = trials_.planned(trial->point);
      if (shortfall(MemoryNeed(result_.memory.layout), limits_).fits()) return trial;
    }
    return nullptr;
  }

  void finish() {
    if (const Trial* chosen = choose(); chosen != nullptr) {
      result_.prediction = trials_.predicted(result_.memory, false);
      result_.runner_up = runner_up(space_, trials_, *chosen, result_.prediction.step_seconds);
      result_.binding = binding_limit(space_, candidates_, limits_, chosen->point, chosen->busy);
      return;
    }
    const Point* leanest = trials_.leanest();
    PROTRAIN_CHECK(leanest != nullptr, "no plan was laid out");
    result_.memory = trials_.planned(*leanest);
    result_.missing = shortfall(MemoryNeed(result_.memory.layout), limits_);
    result_.binding = result_.missing.device > 0 ? "device memory" : "host memory";
    result_.prediction = trials_.predicted(result_.memory, false);
  }

  const Space& space_;
  const MemoryLimits& limits_;
  const SearchLimits& search_limits_;
  Candidates candidates_;
  Trials trials_;
  SearchResult result_;
};

}  // namespace

SearchResult search(const ModelSpec& spec, const RunShape& shape, const Profile& profile, const Rates& rates,
                    const MemoryLimits& limits, const SearchSpace& knobs, const PredictOptions& options,
                    const SearchLimits& search_limits) {
  const double started = now();
  // Whatever the plan, the run has to be one that this model can take.
  Plan plan = resident_plan(spec, shape, knobs.chunk_bytes.value_or(kMiB));
  if (knobs.chunk_bytes) plan.chunk_bytes = *knobs.chunk_bytes;
  if (knobs.activation) plan.activation = *knobs.activation;
  if (knobs.offload_distance) plan.offload_distance = *knobs.offload_distance;
  plan.state_tier = knobs.state_tier;
  validate(spec, make_chunks(spec, plan.chunk_bytes, shape.compute), shape, plan);
  PROTRAIN_CHECK(!shape.train_shapes.empty(), "a search for a run that does not train");
  const Figures figures(spec, shape, profile, rates, options);
  const Space space(figures, knobs);
  return Search(space, profile, limits, options, search_limits).run(started);
}

}  // namespace protrain
