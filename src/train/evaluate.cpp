#include "train/evaluate.h"

#include <chrono>
#include <cmath>

namespace protrain {

std::optional<Evaluation> evaluate(StepRunner& runner, const BatchSource& source, const std::function<bool()>& abandon,
                                   const std::function<void(std::int64_t)>& progress) {
  const auto begin = std::chrono::steady_clock::now();
  Evaluation result;
  double loss_sum = 0;
  Loader loader(source, 0, source.steps_per_epoch());
  for (std::int64_t i = 0; i < source.steps_per_epoch(); ++i) {
    if (abandon()) return std::nullopt;
    const int slot = static_cast<int>(i % 2);
    const StepBatch batch = loader.next(runner.batch_staging(slot));
    StepInputs inputs;
    inputs.supervised_tokens = batch.supervised_tokens;
    const StepRequest request = {Graph::kEvaluate, batch.shape, batch.micro_batches, slot};
    const StepOutputs outputs = runner.step(request, inputs, {.abandon = abandon});
    if (outputs.run.abandoned) return std::nullopt;
    loss_sum += outputs.control.loss_sum;
    result.supervised_tokens += batch.supervised_tokens;
    result.tokens += batch.tokens;
    progress(i + 1);
  }
  result.loss = loss_sum / static_cast<double>(result.supervised_tokens);
  result.perplexity = std::exp(result.loss);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace protrain
