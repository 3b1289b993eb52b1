// Runs a task graph: one host thread a lane, the calling thread owns compute.
//
// An error in any lane cancels all host waits, reaches the caller of run() as one exception that names the task,
// after in-flight work has been synchronised. run() is not reentrant. Everything passed to the constructor outlives it.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>

#include "device/device.h"
#include "schedule/schedule.h"
#include "schedule/trace.h"

namespace protrain {

// Issues one task's work to the stream. One runner an Op, in a table; a new kind of task is one more row.
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  virtual void run(const Task&, Stream&) = 0;
};
using RunnerTable = std::array<TaskRunner*, kOps>;

struct RunOptions {
  bool trace = false;  // fill the timeline (device times)
  // Asked before each compute task; true abandons the run: run() returns with `abandoned`, having started nothing
  // that writes weights. Never asked once an update has been issued.
  std::function<bool()> abandon;
};

struct RunResult {
  Timeline timeline;
  bool abandoned = false;
};

class Executor {
 public:
  Executor(Device&, const RunnerTable&);
  ~Executor();
  RunResult run(const Schedule&, const RunOptions& = {});  // all tasks ended when it returns
  Stream& stream(Lane);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
