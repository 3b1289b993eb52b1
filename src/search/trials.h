// Plans that were laid out exactly and simulated. Internal to search/.
#pragma once
#include <array>
#include <map>
#include <optional>
#include <vector>

#include "search/candidates.h"

namespace protrain {

struct Trial {
  Point point;
  double seconds = 0;
  double score = 0;  // seconds, with SearchLimits::caution
  std::array<double, kLanes> busy{};
};

// Not thread-safe. All outlive it.
class Trials {
 public:
  Trials(const Space&, Candidates&, const Profile&, const MemoryLimits&, const PredictOptions&, const SearchLimits&);

  // kRepair: what does not fit is made smaller a few times. kExact: what only the quick layout makes too large is laid
  // out with care. kNone: it is left.
  enum class Care : std::uint8_t { kRepair, kExact, kNone };
  // Lays out and simulates, unless that has been done. The index in all() of a new one, else -1.
  int attempt(Point, Care);
  // Beyond `share` of what may be spent: on plans of this order, on any.
  bool exhausted(Order, double share = 1) const;
  bool exhausted(double share = 1) const;
  // A candidate's rank, times what simulations of its kind took beyond their closed form.
  double expected(const Candidate&) const;
  bool seen(const Point&) const;
  const Trial* best() const { return best_ < 0 ? nullptr : &all_[static_cast<std::size_t>(best_)]; }
  const std::vector<Trial>& all() const { return all_; }
  // Of what did not fit, the one that lacks least, and what that is: exact after kExact.
  const Point* leanest() const { return leanest_ ? &*leanest_ : nullptr; }
  const Lack& least_lack() const { return lacks_; }
  int layouts() const { return layouts_; }
  int careful_layouts() const { return careful_; }
  double careful_pairs() const { return careful_pairs_; }  // of regions, over all of these
  Prediction predicted(const PlannedMemory&, bool fold) const;
  PlannedMemory planned(const Point&) const;  // as it will run
  PlannedMemory sketched(const Point&) const;

 private:
  const Space& space_;
  Candidates& candidates_;
  const Profile& profile_;
  const MemoryLimits& limits_;
  const PredictOptions& options_;
  const SearchLimits& search_limits_;
  std::map<std::array<int, 13>, bool> seen_;  // whether nothing more is to be learned, however careful
  std::vector<Trial> all_;
  std::map<Kind, double> beyond_;  // seconds / TimeBound::likely
  int best_ = -1;
  std::optional<Point> leanest_;
  Lack lacks_;
  int layouts_ = 0, careful_ = 0;
  std::map<Order, double> effort_ = {{Order::kMicroBatch, 0}, {Order::kLayer, 0}};
  double most_effort_ = 0, careful_pairs_ = 0;
};

}  // namespace protrain
