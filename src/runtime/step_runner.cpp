#include "runtime/step_runner.h"

#include <algorithm>
#include <list>
#include <utility>

#include "base/error.h"
#include "runtime/task_runners.h"
#include "runtime/weight_loads.h"

namespace protrain {

namespace {

// Schedules are kept for the steps to come: planned shapes x batch slots x what is pending and in the slots, which is
// the same from step to step but for a few at the start and around evaluations.
constexpr std::size_t kMostSchedules = 32;

// Saved sets hold addresses of this step: none survives it, however it ends.
class SavedScope {
 public:
  explicit SavedScope(StepContext& context) : context_(context) {}
  ~SavedScope() { context_.saved.clear(); }
  SavedScope(const SavedScope&) = delete;
  SavedScope& operator=(const SavedScope&) = delete;

 private:
  StepContext& context_;
};

// Slots that hold nothing need not be named.
std::vector<Id> trimmed(std::vector<Id> slots) {
  while (!slots.empty() && slots.back() < 0) slots.pop_back();
  return slots;
}

std::vector<Id> host_chunks(const Plan& plan) {
  std::vector<Id> chunks;
  for (Id chunk = 0; chunk < static_cast<Id>(plan.place.size()); ++chunk) {
    if (plan.place[chunk] == UpdatePlace::kCpu) chunks.push_back(chunk);
  }
  return chunks;
}

// Ends a run that left updates half done. The kind of failure stays.
[[noreturn]] void rethrow_as_lost(ChunkStore& store, const std::string& update) {
  const auto text = [&](const char* what) {
    std::string message = fmt::format(
        "{} (\"{}\" had begun: the weights in memory are of no step; go on from the last checkpoint)", what, update);
    store.set_lost(message);
    return message;
  };
  try {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), text(error.what()));
  } catch (const std::exception& error) {
    throw InternalError(text(error.what()));
  }
}

}  // namespace

struct StepRunner::State {
  const RunShape& shape;
  const Profile& profile;
  const Plan& plan;
  const AdamWOptions options;
  const std::vector<Id> updated_on_host;  // all chunks of place kCpu
  StepContext context;
  TaskRunners runners;
  Executor executor;
  const std::vector<Id> slot;  // by chunk: body slot of a streamed one, else -1
  std::vector<Id> held;        // by slot: the chunk that was loaded last; -1 none
  std::vector<Id> pending;     // chunks still to be updated, by context.pending_scalars; ascending
  int pending_slot = 0;        // of that step: where its control lies (kResults)
  bool updated_now = false;    // the last run has updated a chunk on the host, by its own gradient
  std::list<std::pair<StepShape, Schedule>> schedules;  // most recent first
  const Schedule* last = nullptr;

  State(ChunkStore& store, const std::vector<Chunk>& chunks, const RunShape& shape_in, const Profile& profile_in,
        const Plan& plan_in, const Layout& layout, Device& device, std::vector<std::unique_ptr<Block>> blocks,
        UpdateKernels& device_kernels, UpdateKernels* host_kernels, const AdamWOptions& options_in,
        const Arenas& arenas)
      : shape(shape_in),
        profile(profile_in),
        plan(plan_in),
        options(options_in),
        updated_on_host(host_chunks(plan_in)),
        context{store, chunks, layout, device_kernels, host_kernels, std::move(blocks), {}, {}, {}, {}, 0},
        runners(context),
        executor(device, runners.table(), arenas),
        slot(slots(chunks, plan).weight),
        held(static_cast<std::size_t>(*std::max_element(slot.begin(), slot.end()) + 1), -1) {
    PROTRAIN_CHECK(context.blocks.size() == store.spec().blocks.size(), "{} blocks for {}", context.blocks.size(),
                   store.spec().blocks.size());
    PROTRAIN_CHECK(host_kernels != nullptr || updated_on_host.empty(), "the plan updates on the host, by no kernels");
  }

  const Schedule& schedule(const StepShape& step) {
    const auto found =
        std::find_if(schedules.begin(), schedules.end(), [&](const auto& entry) { return entry.first == step; });
    if (found != schedules.end()) {
      schedules.splice(schedules.begin(), schedules, found);
      return found->second;
    }
    Schedule made = expand(context.store.spec(), context.chunks, shape, profile, plan, context.layout, step);
    const std::string conflict = race(made);
    PROTRAIN_CHECK(conflict.empty(), "{}", conflict);
    const std::string missing = missing_load(made, step, context.store.spec(), context.chunks, plan);
    PROTRAIN_CHECK(missing.empty(), "{}", missing);
    schedules.emplace_front(step, std::move(made));
    if (schedules.size() > kMostSchedules) {
      if (last == &schedules.back().second) last = nullptr;
      schedules.pop_back();
    }
    return schedules.front().second;
  }

  // What the graph before has left behind.
  StepShape with_books(StepShape step) const {
    step.pending = pending;
    step.pending_slot = pending.empty() ? 0 : pending_slot;
    step.slots = held;
    for (Id& chunk : step.slots) {
      if (chunk >= 0 && !context.store.current(chunk)) chunk = -1;  // written, or updated, since it was loaded
    }
    return step;
  }

  // Runs the graph and keeps the books, however it ends.
  RunResult run(const Schedule& tasks, const RunOptions& run_options) {
    ChunkStore& store = context.store;
    store.load_stale_homes();
    const SavedScope scope(context);
    RunResult result;
    try {
      result = executor.run(tasks, run_options);
    } catch (...) {
      store.forget_copies();
      settle(tasks);
      if (const Task* update = half_done(tasks)) rethrow_as_lost(store, update->name);
      throw;
    }
    settle(tasks);
    if (!result.abandoned) {
      PROTRAIN_CHECK(pending.empty(), "{} pending updates were left out", pending.size());
      PROTRAIN_CHECK(trimmed(with_books(StepShape()).slots) == trimmed(tasks.slots_after),
                     "the slots do not hold what the schedule says");
    }
    return result;
  }

  // After a failure: the first update by which the state is lost, or null. See Note [Half done].
  const Task* half_done(const Schedule& tasks) const {
    for (std::size_t id = 0; id < tasks.tasks.size(); ++id) {
      const Task& task = tasks.tasks[id];
      if (task.op != Op::kUpdate || !executor.started().at(id)) continue;
      if (!task.pending || !executor.completed().at(id)) return &task;
    }
    return nullptr;
  }

  // Reads off what has been done. After a failure no copy is current, so that held[] is of no account.
  void settle(const Schedule& tasks) {
    updated_now = false;
    for (std::size_t id = 0; id < tasks.tasks.size(); ++id) {
      const Task& task = tasks.tasks[id];
      if (!executor.completed().at(id)) continue;
      if (is_weight_load(task) && slot[task.chunk] >= 0) held[slot[task.chunk]] = task.chunk;
      if (task.op != Op::kUpdate || task.lane != Lane::kCpuUpdate) continue;
      if (task.pending) {
        std::erase(pending, task.chunk);
      } else {
        updated_now = true;
      }
    }
    context.store.set_pending(!pending.empty());
  }
};

StepRunner::StepRunner(ChunkStore& store, const std::vector<Chunk>& chunks, const RunShape& shape,
                       const Profile& profile, const Plan& plan, const Layout& layout, Device& device,
                       std::vector<std::unique_ptr<Block>> blocks, UpdateKernels& device_kernels,
                       UpdateKernels* host_kernels, const AdamWOptions& options, const Arenas& arenas)
    : state_(std::make_unique<State>(store, chunks, shape, profile, plan, layout, device, std::move(blocks),
                                     device_kernels, host_kernels, options, arenas)) {}

StepRunner::~StepRunner() = default;

std::byte* StepRunner::batch_staging(int slot) {
  return state_->context.at(state_->context.layout.find(Region::kBatchStaging, slot));
}

StepOutputs StepRunner::step(const StepRequest& request, const StepInputs& inputs, const RunOptions& options) {
  State& state = *state_;
  state.context.store.check_not_lost();
  const bool training = request.graph == Graph::kTrain;
  PROTRAIN_CHECK(training || request.graph == Graph::kEvaluate, "step() trains or evaluates");
  StepOutputs outputs;
  if (training && inputs.supervised_tokens == 0) {
    outputs.control.skip = 1;
    return outputs;
  }
  if (!training) drain();

  StepShape step;
  step.graph = request.graph;
  step.batch = request.batch;
  step.micro_batches = request.micro_batches;
  step.batch_slot = request.batch_slot;
  step.clip = !training || inputs.max_norm > 0;
  // Expanding checks that the step fits the layout, before anything is written.
  const Schedule& tasks = state.schedule(state.with_books(step));
  state.last = &tasks;
  StepContext& context = state.context;
  context.set_up(step, inputs, state.options);
  outputs.run = state.run(tasks, options);
  if (outputs.run.abandoned) return outputs;

  outputs.control = context.results(step.batch_slot);
  outputs.updated_early = state.updated_now && context.results(kResultsOfLosses).skip == 0;
  if (training && step.clip && outputs.control.skip == 0) {
    state.pending = state.updated_on_host;
    context.pending_scalars = context.scalars;
    state.pending_slot = step.batch_slot;
    context.store.set_pending(!state.pending.empty());
  }
  return outputs;
}

void StepRunner::drain() {
  State& state = *state_;
  state.context.store.check_not_lost();
  if (state.pending.empty()) return;
  StepShape step;
  step.graph = Graph::kDrain;
  step.batch = state.shape.train_shapes.at(0);
  state.run(state.schedule(state.with_books(step)), {});
}

bool StepRunner::pending() const { return !state_->pending.empty(); }

const Schedule& StepRunner::last_schedule() const {
  PROTRAIN_CHECK(state_->last != nullptr, "no step has run");
  return *state_->last;
}

void StepRunner::set_runner(Op op, TaskRunner& runner) {
  PROTRAIN_CHECK(static_cast<int>(op) >= kOps, "\"{}\" has a runner", op_name(op));
  state_->executor.set_runner(op, runner);
}

Block& StepRunner::block(Id id) { return *state_->context.blocks.at(id); }
std::vector<std::unique_ptr<Block>> StepRunner::release_blocks() {
  PROTRAIN_CHECK(!pending(), "updates are pending");
  return std::move(state_->context.blocks);
}
Executor& StepRunner::executor() { return state_->executor; }

}  // namespace protrain
