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
class Clocks {
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

// What a task does to bytes: its accesses; the lives that begin or end with it are writes of their whole ranges, for
// freed bytes may be poisoned, and the arena counts them. Accesses inside such a range are left out.
std::vector<Access> effective_accesses(const Task&);

// By lane, the latest task that must come before an access; -1 = none.
using Earlier = std::array<Id, kLanes>;

// The last readers and the last writer of every byte. A write comes after all that was recorded of its bytes, else
// there is a race already; so nothing but the write is remembered of them.
class AccessHistory {
 public:
  // Raises `earlier` to what this access must follow.
  void conflicts(const Access&, Earlier& earlier);
  void record(const Access&, Lane, Id task);

 private:
  struct Stretch {
    Bytes end = 0;
    Id writer = -1;
    Lane writer_lane = Lane::kCompute;
    std::array<Id, kLanes> read{};
  };
  using Stretches = std::map<Bytes, Stretch>;  // by first byte; disjoint
  static Stretch untouched(Bytes end);
  // The first stretch that reaches beyond this byte.
  Stretches::iterator at(Stretches&, Bytes) const;
  // Cuts at the ends of the range.
  void cut(Stretches&, Bytes begin, Bytes end);

  std::array<Stretches, 4> tiers_;
};

}  // namespace protrain
