// The points of the search space: what may be combined, how many there are, and the plan of each. Internal to search/.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "search/bound.h"
#include "search/search.h"

namespace protrain {

// One value of every knob. Where the space fixes modes or places as lists, the numbers that they stand for are 0.
struct Point {
  int size = 0;  // of Space::sizes
  Order order = Order::kMicroBatch;
  ActivationCounts counts;
  int distance = 2;
  int resident = 0;  // body chunks
  UpdatePlace embedding = UpdatePlace::kResident, head = UpdatePlace::kResident;
  SlotKnobs slots;
};

// Values of a knob, both ends included.
struct Choices {
  int least = 0, most = -1;
  bool empty() const { return most < least; }
  int clamp(int value) const { return std::min(std::max(value, least), most); }
  double count() const { return empty() ? 0 : static_cast<double>(most) - least + 1; }
};

// Not thread-safe (it remembers sums that were asked for).
class Space {
 public:
  // Figures and SearchSpace outlive it. Error(kConfig) when nothing can be chosen.
  Space(const Figures&, const SearchSpace&);

  const Figures& figures;
  const SearchSpace& knobs;
  const int layers;
  std::vector<std::unique_ptr<ChunkSet>> sizes;
  std::vector<Order> orders;
  std::vector<int> distances;
  std::vector<UpdatePlace> embeddings, heads;
  int swap_interval = 2;

  double count() const;
  // All points; only for a small count().
  std::vector<Point> all() const;

  // What the other knobs leave of one.
  Choices residents(int size) const;
  Choices persists(const Point&) const;
  Choices buffers(const Point&) const;
  Choices gradients(const Point&) const;
  bool allows(const ActivationCounts&) const;
  bool offloads(const ActivationCounts&) const;  // so that the distance matters

  const ChunkSet& chunks(const Point& point) const { return *sizes[static_cast<std::size_t>(point.size)]; }
  const PlaceSums& places(const Point&) const;
  const ActivationSums& activations(const Point&) const;
  Plan plan(const Point&) const;
  MemoryNeed need(const Point&) const;    // at least
  double host_share(const Point&) const;  // of the parameters: updated on the host
  // Everything on the device and kept, in the largest chunks; none where the knobs do not allow it.
  std::optional<Point> simplest() const;
  TimeBound time(const Point&) const;

 private:
  double count_modes() const;
  void add_counts(std::vector<ActivationCounts>&) const;
  [[noreturn]] void refuse() const;

  using PlaceKey = std::tuple<int, Order, int, UpdatePlace, UpdatePlace>;
  using ModeKey = std::tuple<Order, int, int, int, int, int>;
  mutable std::map<PlaceKey, std::unique_ptr<PlaceSums>> places_;
  mutable std::map<ModeKey, std::unique_ptr<ActivationSums>> activations_;
};

}  // namespace protrain
