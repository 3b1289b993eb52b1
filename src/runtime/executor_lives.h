// The lives of ranges within one run of a schedule: which task begins and which ends each, and who uses the bytes in
// between. Internal to Executor.
//
// Note [Lives and lanes]: the books follow the total order where ranges share bytes. A life may end with a task that no
// edge orders with the next life's first (a range may be held longer than it is used), so the latter's thread first
// waits until the former has been issued: waits(). Poison is another matter: several lanes may read a range last, in no
// order among themselves, so it comes with whichever of them ends last. All of them stand before the next life's first
// write, by the edges that race() proves.
//
// Thread safety: begin, use and end are called by the task's lane, in the order of waits(); the rest between runs.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <span>
#include <vector>

#include "memory/arena.h"
#include "schedule/schedule.h"

namespace protrain {

class Lives {
 public:
  // InternalError when a life does not end in the schedule, or ends without having begun.
  Lives(const Schedule&, const Arenas&);

  // Earlier tasks of other lanes that must have been issued before this one, beside Task::after.
  std::span<const Id> waits(Id task) const { return waits_[task]; }
  void begin(Id task, Stream&);  // before its work is issued
  void use(Id task, Stream&);    // behind its work, before its event is recorded
  void end(Id task);             // before others may see it as issued
  // Ends what a run that did not come to its end has left. All of its work has ended.
  void end_all();

 private:
  struct Life {
    Range range;
    Id first = -1, last = -1;       // begins and ends with these tasks
    std::array<Id, kLanes> user{};  // by lane the last task that touches it; -1 none
    std::atomic<int> users{0};      // of those, how many have not ended. Counted only where the arena poisons
    bool begun = false, ended = false;
  };

  const Schedule& schedule_;
  Arenas arenas_;
  std::deque<Life> lives_;
  std::vector<std::vector<Id>> waits_;  // all by task
  std::vector<std::vector<Life*>> begins_, ends_, uses_;
};

}  // namespace protrain
