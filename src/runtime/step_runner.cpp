#include "runtime/step_runner.h"

#include <cstring>
#include <deque>
#include <utility>

#include "base/error.h"
#include "runtime/task_runners.h"

namespace protrain {

namespace {

// Saved sets hold addresses of this step: none survives it, however it ends.
class SavedScope {
 public:
  explicit SavedScope(StepContext& context) : context_(context) {}
  ~SavedScope() {
    for (auto& saved : context_.saved) saved = nullptr;
  }
  SavedScope(const SavedScope&) = delete;
  SavedScope& operator=(const SavedScope&) = delete;

 private:
  StepContext& context_;
};

}  // namespace

struct StepRunner::State {
  const RunShape& shape;
  const Plan& plan;
  const AdamWOptions options;
  StepContext context;
  TaskRunners runners;
  Executor executor;
  std::deque<std::pair<StepShape, Schedule>> schedules;  // few: planned shapes x slots; addresses stay

  State(ChunkStore& store, const std::vector<Chunk>& chunks, const RunShape& shape_in, const Plan& plan_in,
        const Layout& layout, Device& device, std::vector<std::unique_ptr<Block>> blocks, UpdateKernels& kernels,
        const AdamWOptions& options_in, std::byte* pinned_arena)
      : shape(shape_in),
        plan(plan_in),
        options(options_in),
        context{store, chunks, layout, kernels, pinned_arena, std::move(blocks), Graph::kTrain, {}, {}, {}, {}, 0},
        runners(context),
        executor(device, runners.table()) {
    PROTRAIN_CHECK(context.blocks.size() == store.spec().blocks.size(), "{} blocks for {}", context.blocks.size(),
                   store.spec().blocks.size());
    context.saved.resize(context.blocks.size());
  }

  void set_up(const StepShape& step, const StepInputs& inputs) {
    const Layout& layout = context.layout;
    const Bytes batch_bytes = batch_layout(step.batch).bytes;
    std::byte* staging = context.at(layout.find(Region::kBatchStaging, step.batch_slot));
    const std::byte* batch = context.at(layout.find(Region::kBatch, step.batch_slot));
    if (inputs.host_batch != nullptr && inputs.host_batch != staging) {
      std::memcpy(staging, inputs.host_batch, static_cast<std::size_t>(batch_bytes * step.micro_batches));
    }
    const bool training = step.graph == Graph::kTrain;
    context.graph = step.graph;
    context.contexts.clear();
    for (Id i = 0; i < step.micro_batches; ++i) {
      Context one;
      one.shape = step.batch;
      one.batch = batch + i * batch_bytes;
      one.host_batch = staging + i * batch_bytes;
      one.dropout_key = inputs.dropout_key;
      one.loss_scale = training ? 1.0 / static_cast<double>(inputs.supervised_tokens) : 0;
      one.training = training;
      context.contexts.push_back(one);
    }
    context.max_norm = inputs.max_norm;
    if (training) {
      context.decayed = make_adamw_step(options, inputs.learning_rate, inputs.weight_decay, inputs.update);
      context.plain = make_adamw_step(options, inputs.learning_rate, 0, inputs.update);
    }
  }
};

StepRunner::StepRunner(ChunkStore& store, const std::vector<Chunk>& chunks, const RunShape& shape, const Plan& plan,
                       const Layout& layout, Device& device, std::vector<std::unique_ptr<Block>> blocks,
                       UpdateKernels& kernels, const AdamWOptions& options, std::byte* pinned_arena)
    : state_(std::make_unique<State>(store, chunks, shape, plan, layout, device, std::move(blocks), kernels, options,
                                     pinned_arena)) {}

StepRunner::~StepRunner() = default;

std::byte* StepRunner::batch_staging(int slot) {
  return state_->context.at(state_->context.layout.find(Region::kBatchStaging, slot));
}

const Schedule& StepRunner::schedule(const StepShape& step) {
  for (const auto& [shape, schedule] : state_->schedules) {
    if (shape == step) return schedule;
  }
  const StepContext& context = state_->context;
  Schedule made = expand(context.store.spec(), context.chunks, state_->shape, state_->plan, context.layout, step);
  const std::string found = race(made);
  PROTRAIN_CHECK(found.empty(), "{}", found);
  return state_->schedules.emplace_back(step, std::move(made)).second;
}

StepOutputs StepRunner::step(const StepShape& step, const StepInputs& inputs, const RunOptions& options) {
  StepOutputs outputs;
  if (step.graph == Graph::kTrain && inputs.supervised_tokens == 0) {
    outputs.control.skip = 1;
    return outputs;
  }
  const Schedule& tasks = schedule(step);  // checks that the step fits the layout before anything is written
  StepContext& context = state_->context;
  state_->set_up(step, inputs);
  const SavedScope scope(context);
  outputs.run = state_->executor.run(tasks, options);
  if (!outputs.run.abandoned) {
    std::memcpy(&outputs.control, context.at(context.layout.find(Region::kResults)), sizeof(StepControl));
  }
  return outputs;
}

Block& StepRunner::block(Id id) { return *state_->context.blocks.at(id); }
Executor& StepRunner::executor() { return state_->executor; }

}  // namespace protrain
