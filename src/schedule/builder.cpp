#include "schedule/builder.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace protrain {

Id ScheduleBuilder::add(Task task) {
  const auto id = static_cast<Id>(schedule_.tasks.size());
  Clock known = clocks_.start(task.lane);
  for (const Id earlier : task.after) {
    PROTRAIN_CHECK(earlier >= 0 && earlier < id, "{} is to run after task {}", task.name, earlier);
    known.include(clocks_.of(earlier));
  }
  const std::vector<Access> accesses = effective_accesses(task);
  Earlier earlier;
  earlier.fill(-1);
  for (const Access& access : accesses) history_.conflicts(access, earlier);
  // Latest first: an edge to a later task may bring earlier ones with it, never the other way round.
  std::array<int, kLanes> lanes{};
  std::iota(lanes.begin(), lanes.end(), 0);
  std::sort(lanes.begin(), lanes.end(), [&](int a, int b) { return earlier[a] > earlier[b]; });
  for (const int lane : lanes) {
    if (earlier[lane] < 0 || known.covers(static_cast<Lane>(lane), earlier[lane])) continue;
    task.after.push_back(earlier[lane]);
    known.include(clocks_.of(earlier[lane]));
  }
  std::sort(task.after.begin(), task.after.end());

  for (const Access& access : accesses) history_.record(access, task.lane, id);
  clocks_.append(task.lane, known);
  schedule_.tasks.push_back(std::move(task));
  return id;
}

}  // namespace protrain
