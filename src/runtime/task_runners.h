// The runner of each kind of task, over a StepContext. Internal to runtime/.
#pragma once
#include <memory>
#include <vector>

#include "runtime/executor.h"
#include "runtime/step_context.h"

namespace protrain {

// Owns one runner an Op; the context outlives it.
class TaskRunners {
 public:
  explicit TaskRunners(StepContext&);
  ~TaskRunners();
  const RunnerTable& table() const { return table_; }

 private:
  std::vector<std::unique_ptr<TaskRunner>> owned_;
  RunnerTable table_{};
};

}  // namespace protrain
