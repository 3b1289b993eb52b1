// Runs blocks: a task's ranges become the addresses of a BlockCall, and saved graphs wait for their backward. Internal
// to runtime/.
#pragma once
#include <array>
#include <vector>

#include "runtime/task_runners.h"

namespace protrain {

class BlockRunner final : public TaskRunner {
 public:
  explicit BlockRunner(StepContext&);  // outlives it
  void run(const Task&, Stream&) override;

 private:
  enum { kNoGradient, kFirst, kAdding };
  StepContext& context_;
  std::vector<std::array<std::vector<ParameterBytes>, 3>> bound_;  // by block
  std::vector<std::vector<Id>> chunks_;                            // by block: those it reads
};

}  // namespace protrain
