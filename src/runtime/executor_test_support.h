// Tasks and runners for tests of the executor.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/executor.h"

namespace protrain::test {

// Calls a function for every task, whatever its kind.
class Runner final : public TaskRunner {
 public:
  using Function = std::function<void(const Task&, Stream&)>;
  explicit Runner(Function function) : function_(std::move(function)) {}
  void run(const Task& task, Stream& stream) override { function_(task, stream); }

 private:
  Function function_;
};

inline RunnerTable table_of(Runner& runner) {
  RunnerTable table;
  table.fill(&runner);
  return table;
}

inline Task task_on(Lane lane, std::string name, std::vector<Id> after = {}, Op op = Op::kCopy) {
  Task task;
  task.op = op;
  task.lane = lane;
  task.name = std::move(name);
  task.after = std::move(after);
  return task;
}

// Gives every task an edge to each earlier one of another lane that it conflicts with. Acquired and released ranges
// count as written.
inline void add_edges(Schedule& schedule) {
  const auto accesses = [](const Task& task) {
    std::vector<Access> all = task.access;
    for (const Range& range : task.acquires) all.push_back({range, true, true});
    for (const Range& range : task.releases) all.push_back({range, true, false});
    return all;
  };
  const auto meet = [](const Access& a, const Access& b) {
    return a.range.tier == b.range.tier && (a.writes || b.writes) && a.range.offset < b.range.offset + b.range.bytes &&
           b.range.offset < a.range.offset + a.range.bytes;
  };
  for (Id id = 0; id < static_cast<Id>(schedule.tasks.size()); ++id) {
    Task& task = schedule.tasks[id];
    for (Id earlier = 0; earlier < id; ++earlier) {
      const Task& other = schedule.tasks[earlier];
      if (other.lane == task.lane) continue;
      bool conflict = false;
      for (const Access& a : accesses(other)) {
        for (const Access& b : accesses(task)) conflict = conflict || meet(a, b);
      }
      if (conflict) task.after.push_back(earlier);
    }
  }
}

}  // namespace protrain::test
