// Which task is known to come before which, and who touched which bytes last: shared by the builder, which adds the
// edges that are missing, and by race(), which reports them. Internal to schedule/.
#pragma once
#include <array>
#include <map>
#include <vector>

#include "schedule/schedule.h"

namespace protrain {

// By lane, the latest task that is before (or is) a given one; -1 = none. Lanes run in order, so all earlier ones are
// too.
class Clock {
 public:
  Clock() { latest_.fill(-1); }
  bool covers(Lane lane, Id task) const { return task <= latest_[static_cast<std::size_t>(lane)]; }
  void include(const Clock& other);
  void set(Lane lane, Id task) { latest_[static_cast<std::size_t>(lane)] = task; }

 private:
  std::array<Id, kLanes> latest_;
};

// Clocks of all tasks so far, filled in the total order.
class Order {
 public:
  // What task number size() knows by its lane alone.
  Clock start(Lane) const;
  // Appends it with all that it knows.
  void append(Lane, Clock);
  const Clock& of(Id task) const { return clocks_.at(task); }

 private:
  std::vector<Clock> clocks_;
  std::array<Id, kLanes> last_ = [] {
    std::array<Id, kLanes> none{};
    none.fill(-1);
    return none;
  }();
};

// The last reader and writer of every byte, by lane.
class AccessHistory {
 public:
  struct Conflict {
    Id task = -1;
    Lane lane = Lane::kCompute;
    Range range;  // where the two meet
  };
  // Earlier accesses that this one must follow: for each lane the latest, of each stretch of bytes.
  std::vector<Conflict> conflicts(const Access&);
  void record(const Access&, Lane, Id task);

 private:
  struct Stretch {
    Bytes end = 0;
    std::array<Id, kLanes> read, written;
  };
  using Stretches = std::map<Bytes, Stretch>;  // by first byte; disjoint
  // The stretches that make up the range exactly: cut at its ends, gaps filled.
  std::pair<Stretches::iterator, Stretches::iterator> cut(const Range&);

  std::array<Stretches, 4> tiers_;
};

}  // namespace protrain
