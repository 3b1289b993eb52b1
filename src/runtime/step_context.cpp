#include "runtime/step_context.h"

#include <cstring>

#include "base/error.h"

namespace protrain {

void StepContext::set_up(const StepShape& step, const StepInputs& inputs, const AdamWOptions& options) {
  const Bytes batch_bytes = batch_layout(step.batch).bytes;
  const Range staging_range = layout.find(Region::kBatchStaging, step.batch_slot);
  PROTRAIN_CHECK(batch_bytes * step.micro_batches <= staging_range.bytes, "{} micro-batches do not fit their memory",
                 step.micro_batches);
  std::byte* staging = at(staging_range);
  const std::byte* batch = at(layout.find(Region::kBatch, step.batch_slot));
  if (inputs.host_batch != nullptr && inputs.host_batch != staging) {
    std::memcpy(staging, inputs.host_batch, static_cast<std::size_t>(batch_bytes * step.micro_batches));
  }
  const bool training = step.graph == Graph::kTrain;
  contexts.clear();
  for (Id i = 0; i < step.micro_batches; ++i) {
    Context one;
    one.shape = step.batch;
    one.batch = batch + i * batch_bytes;
    one.host_batch = staging + i * batch_bytes;
    one.dropout_key = inputs.dropout_key;
    one.loss_scale = training ? 1.0 / static_cast<double>(inputs.supervised_tokens) : 0;
    one.training = training;
    contexts.push_back(one);
  }
  saved.clear();
  saved.resize(static_cast<std::size_t>(step.micro_batches) * blocks.size());
  max_norm = inputs.max_norm;
  if (training) {
    scalars = {make_adamw_step(options, inputs.learning_rate, inputs.weight_decay, inputs.update),
               make_adamw_step(options, inputs.learning_rate, 0, inputs.update)};
  }
}

StepControl StepContext::results(Id index) const {
  StepControl control;
  std::memcpy(&control, at(layout.find(Region::kResults, index)), sizeof control);
  return control;
}

}  // namespace protrain
