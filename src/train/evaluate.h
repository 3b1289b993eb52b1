// Loss over the evaluation data: the mean over all its supervised tokens, whatever the batch. One thread.
#pragma once
#include <functional>
#include <optional>

#include "data/loader.h"
#include "runtime/step_runner.h"

namespace protrain {

struct Evaluation {
  double loss = 0;
  double perplexity = 0;
  std::int64_t supervised_tokens = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
};

// Nothing when `abandon` said so. `progress` gets the number of batches done.
std::optional<Evaluation> evaluate(StepRunner&, const BatchSource&, const std::function<bool()>& abandon,
                                   const std::function<void(std::int64_t)>& progress);

}  // namespace protrain
