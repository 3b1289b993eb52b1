#include <algorithm>

#include "base/error.h"
#include "schedule/order.h"
#include "schedule/schedule.h"

namespace protrain {

namespace {

// Where the two meet.
std::string describe(const Task& first, const Task& second) {
  for (const Access& a : effective_accesses(first)) {
    for (const Access& b : effective_accesses(second)) {
      const Bytes begin = std::max(a.range.offset, b.range.offset);
      const Bytes end = std::min(a.range.offset + a.range.bytes, b.range.offset + b.range.bytes);
      if (a.range.tier != b.range.tier || begin >= end || !(a.writes || b.writes)) continue;
      return fmt::format("\"{}\" and \"{}\" both touch bytes {} to {} of tier {}, in no order", first.name, second.name,
                         begin, end, static_cast<int>(a.range.tier));
    }
  }
  return fmt::format("\"{}\" and \"{}\" are in no order", first.name, second.name);
}

}  // namespace

std::string race(const Schedule& schedule) {
  Clocks clocks;
  AccessHistory history;
  for (Id id = 0; id < static_cast<Id>(schedule.tasks.size()); ++id) {
    const Task& task = schedule.tasks[id];
    Clock known = clocks.start(task.lane);
    for (const Id earlier : task.after) {
      if (earlier < 0 || earlier >= id)
        return fmt::format("{} waits for task {}, which is not before it", task.name, earlier);
      known.include(clocks.of(earlier));
    }
    const std::vector<Access> accesses = effective_accesses(task);
    for (const Access& access : accesses) {
      Earlier earlier;
      earlier.fill(-1);
      history.conflicts(access, earlier);
      for (int lane = 0; lane < kLanes; ++lane) {
        if (earlier[lane] < 0 || known.covers(static_cast<Lane>(lane), earlier[lane])) continue;
        return describe(schedule.tasks[earlier[lane]], task);
      }
    }
    for (const Access& access : accesses) history.record(access, task.lane, id);
    clocks.append(task.lane, known);
  }
  return "";
}

}  // namespace protrain
