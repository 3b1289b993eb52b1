// Runs a task graph: one host thread a lane, the calling thread owns compute. Lanes of the host itself (cpu_update,
// disk) do their work on their thread; the others issue theirs to a stream of the device.
//
// An error in any lane cancels all host waits, reaches the caller of run() as one exception that names the task,
// after in-flight work has been synchronised. run() is not reentrant. Everything passed to the constructor outlives it.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "memory/arena.h"
#include "schedule/schedule.h"
#include "schedule/trace.h"

namespace protrain {

// Issues one task's work to the stream. One runner an Op, in a table with room for registered kinds.
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  virtual void run(const Task&, Stream&) = 0;
};
using RunnerTable = std::array<TaskRunner*, kMostOps>;

struct RunOptions {
  bool trace = false;  // fill the timeline (device times)
  // Asked before each compute task; true abandons the run: run() returns with `abandoned`, having started no update of
  // this step (pending ones of the step before may have been done). Never asked once such an update has been issued.
  std::function<bool()> abandon = nullptr;
  // Called by the lane's thread when the task is about to be issued. What it throws fails the task. For faults in
  // tests: an error at a chosen task, or the death of the process.
  std::function<void(Id, const Task&)> before_task = nullptr;
};

struct RunResult {
  Timeline timeline;
  bool abandoned = false;
};

// Is the lane's work done by its own host thread?
bool is_host_lane(Lane);

class Executor {
 public:
  // Task::acquires and Task::releases are told to the arenas (where null, they are left out): a range is acquired when
  // the task is issued, before its runner, and released after it, in the order of its stream. Each must be released in
  // the same schedule. However a run ends, nothing of it stays acquired.
  Executor(Device&, const RunnerTable&, const Arenas& = {});
  ~Executor();
  void set_runner(Op, TaskRunner&);                        // it outlives this; between runs
  RunResult run(const Schedule&, const RunOptions& = {});  // all tasks ended when it returns or throws
  // Of the last run, whether it returned, was abandoned or threw, by id: whose runner was called, and whose work is
  // done. What began and is not done may have done a part of it.
  const std::vector<bool>& started() const;
  const std::vector<bool>& completed() const;
  // Stays the same until a run fails.
  Stream& stream(Lane);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
