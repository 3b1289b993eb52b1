#include "schedule/builder.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"

namespace protrain {

Id ScheduleBuilder::add(Task task) {
  const auto id = static_cast<Id>(schedule_.tasks.size());
  Clock known = order_.start(task.lane);
  for (const Id earlier : task.after) {
    PROTRAIN_CHECK(earlier >= 0 && earlier < id, "{} is to run after task {}", task.name, earlier);
    known.include(order_.of(earlier));
  }
  std::vector<AccessHistory::Conflict> conflicts;
  for (const Access& access : task.access) {
    const auto more = history_.conflicts(access);
    conflicts.insert(conflicts.end(), more.begin(), more.end());
  }
  // Latest first: an edge to a later task may bring earlier ones with it, never the other way round.
  std::sort(conflicts.begin(), conflicts.end(), [](const auto& a, const auto& b) { return a.task > b.task; });
  for (const auto& conflict : conflicts) {
    if (known.covers(conflict.lane, conflict.task)) continue;
    task.after.push_back(conflict.task);
    known.include(order_.of(conflict.task));
  }
  std::sort(task.after.begin(), task.after.end());

  for (const Access& access : task.access) history_.record(access, task.lane, id);
  order_.append(task.lane, known);
  schedule_.tasks.push_back(std::move(task));
  return id;
}

}  // namespace protrain
