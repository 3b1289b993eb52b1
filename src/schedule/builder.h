// Puts tasks in the total order and derives each one's edges from what it touches. Internal to schedule/.
#pragma once
#include "schedule/order.h"
#include "schedule/schedule.h"

namespace protrain {

class ScheduleBuilder {
 public:
  // Appends the task; fills Task::after with the fewest edges that order its accesses after earlier ones. Entries that
  // `after` already has are kept.
  Id add(Task);
  Schedule take() { return std::move(schedule_); }

 private:
  Schedule schedule_;
  Clocks clocks_;
  AccessHistory history_;
};

}  // namespace protrain
