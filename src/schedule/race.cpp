#include "base/error.h"
#include "schedule/order.h"
#include "schedule/schedule.h"

namespace protrain {

std::string race(const Schedule& schedule) {
  Order order;
  AccessHistory history;
  for (Id id = 0; id < static_cast<Id>(schedule.tasks.size()); ++id) {
    const Task& task = schedule.tasks[id];
    Clock known = order.start(task.lane);
    for (const Id earlier : task.after) {
      if (earlier < 0 || earlier >= id)
        return fmt::format("{} waits for task {}, which is not before it", task.name, earlier);
      known.include(order.of(earlier));
    }
    for (const Access& access : task.access) {
      for (const auto& conflict : history.conflicts(access)) {
        if (known.covers(conflict.lane, conflict.task)) continue;
        return fmt::format("\"{}\" and \"{}\" both touch bytes {} to {} of tier {}, in no order",
                           schedule.tasks[conflict.task].name, task.name, conflict.range.offset,
                           conflict.range.offset + conflict.range.bytes, static_cast<int>(conflict.range.tier));
      }
    }
    for (const Access& access : task.access) history.record(access, task.lane, id);
    order.append(task.lane, known);
  }
  return "";
}

}  // namespace protrain
