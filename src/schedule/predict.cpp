#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "schedule/recent_load.h"
#include "schedule/simulate.h"

namespace protrain {

namespace {

constexpr std::int64_t kWalked = 3;  // micro-batches of a folded step

// What a step leaves in the body slots. Every step visits every block, the first blocks last (in backward), so it does
// not depend on what was there before.
std::vector<Id> slots_after_step(const ModelSpec& spec, const std::vector<Chunk>& chunks, const Plan& plan, bool clip) {
  const std::vector<Id> slot = slots(chunks, plan).weight;
  const Id count = slot.empty() ? 0 : 1 + *std::max_element(slot.begin(), slot.end());
  std::vector<Id> held(static_cast<std::size_t>(count), -1);
  if (!clip || count == 0) return held;  // streamed chunks were updated in backward: what the slots hold is old
  const auto uses = chunk_uses(spec, chunks);
  for (auto block = uses.rbegin(); block != uses.rend(); ++block) {
    for (const ChunkUse& use : *block) {
      const Id home = slot[static_cast<std::size_t>(use.chunk)];
      if (home >= 0) held[static_cast<std::size_t>(home)] = use.chunk;
    }
  }
  return held;
}

bool offloads_activations(const ModelSpec& spec, const Plan& plan) {
  for (std::size_t block = 0; block < spec.blocks.size(); ++block) {
    const ActivationTraits& mode = traits(plan.activation.at(block));
    if (spec.blocks[block].kind == BlockKind::kLayer && (mode.offload_saved || mode.offload_input)) return true;
  }
  return false;
}

// Copies of saved sets and inputs in kLayer order depend on how many micro-batches pass by meanwhile: nothing is left
// out of such a step.
bool may_fold(const ModelSpec& spec, const RunShape& shape, const Plan& plan) {
  return shape.accumulation > kWalked && !(plan.order == Order::kLayer && offloads_activations(spec, plan));
}

StepShape steady_step(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape, const Plan& plan,
                      const PredictOptions& options) {
  PROTRAIN_CHECK(!shape.train_shapes.empty(), "a prediction of a run that does not train");
  StepShape step;
  step.batch = options.batch.tokens() > 0
                   ? options.batch
                   : *std::max_element(shape.train_shapes.begin(), shape.train_shapes.end(),
                                       [](const auto& a, const auto& b) { return a.tokens() < b.tokens(); });
  step.micro_batches = options.fold && may_fold(spec, shape, plan) ? kWalked : shape.accumulation;
  step.clip = options.clip;
  step.slots = slots_after_step(spec, chunks, plan, options.clip);
  for (Id chunk = 0; options.clip && chunk < static_cast<Id>(chunks.size()); ++chunk) {
    if (plan.place[static_cast<std::size_t>(chunk)] == UpdatePlace::kCpu) step.pending.push_back(chunk);
  }
  step.pending_slot = step.pending.empty() ? 0 : 1;  // steps alternate
  return step;
}

// What one more micro-batch adds to a folded step in kMicroBatch order: what lies between the last calls of the first
// micro-batch and of the second one. The third would not do: gradients leave under its backward.
struct Period {
  double begin = 0, end = 0;
  double seconds() const { return end - begin; }
  double part_of(const Span& span) const {
    return std::max(0.0, std::min(span.end_seconds, end) - std::max(span.begin_seconds, begin));
  }
};

Period period_of(const Schedule& schedule, const Timeline& timeline) {
  Period period;
  for (std::size_t id = 0; id < schedule.tasks.size(); ++id) {
    const Task& task = schedule.tasks[id];
    if (task.op != Op::kRunBlock) continue;
    if (task.what.micro_batch == 0) period.begin = timeline.spans[id].end_seconds;
    if (task.what.micro_batch == 1) period.end = timeline.spans[id].end_seconds;
  }
  return period;
}

// Times of a folded step's tasks, from those of its three micro-batches alone.
void fold_times(const Schedule& schedule, Order order, double stands_for, const Rates& rates,
                std::vector<TaskTime>& times) {
  const Task& upload = schedule.tasks.front();
  PROTRAIN_CHECK(upload.op == Op::kCopy && upload.lane == Lane::kH2d && upload.chunk < 0, "{} comes first",
                 upload.name);
  times.front() = rates.h2d.of(static_cast<double>(upload.access.at(0).range.bytes) * stands_for);
  if (order != Order::kLayer) return;
  for (std::size_t id = 1; id < times.size(); ++id) {
    const Task& task = schedule.tasks[id];
    const bool once = task.chunk >= 0 || task.op == Op::kFinishNorm;  // weights, gradients
    if (!once) times[id] = {times[id].steady * stands_for, times[id].rested * stands_for};
  }
}

// The compute lane's load at the end of a step that begins with it, if its tasks last as long as in `result`: what is
// left of the load at the beginning, and what the step adds. 1 where hardly anything is left.
double steady_load(const Prediction& result, std::int64_t left_out) {
  const double left = std::exp(-result.step_seconds / RecentLoad::kMemory);
  if (left < 0.01) return 1;
  RecentLoad load(0);
  double at = 0;
  const auto pass = [&](double begin, double end) {
    for (const Span& span : result.timeline.spans) {
      const double from = std::max(span.begin_seconds, begin), to = std::min(span.end_seconds, end);
      if (span.lane != Lane::kCompute || to <= from) continue;
      load.rest(from - at);
      load.work(to - from);
      at = to;
    }
    load.rest(end - at);
    at = end;
  };
  const Period period = left_out > 0 ? period_of(result.schedule, result.timeline) : Period{};
  pass(0, period.end);
  for (std::int64_t i = 0; i < left_out; ++i) {
    at = period.begin;
    pass(period.begin, period.end);
  }
  pass(period.end, result.timeline.seconds);
  load.rest(result.step_seconds - result.compute_waits - result.busy[static_cast<std::size_t>(Lane::kCompute)]);
  return std::min(1.0, load.load() / (1 - left));
}

// Fills the sums of a simulated step; in kMicroBatch order `left_out` more micro-batches are added.
void add_up(Prediction& result, Order order, std::int64_t left_out, double between_steps) {
  Period period;
  double periods = 0;
  if (left_out > 0 && order == Order::kMicroBatch) {
    period = period_of(result.schedule, result.timeline);
    periods = static_cast<double>(left_out);
  }
  result.busy = {};
  for (const Span& span : result.timeline.spans) {
    result.busy[static_cast<std::size_t>(span.lane)] +=
        span.end_seconds - span.begin_seconds + periods * period.part_of(span);
  }
  const double tasks = result.timeline.seconds + periods * period.seconds();
  result.step_seconds = tasks + between_steps;
  result.compute_waits = tasks - result.busy[static_cast<std::size_t>(Lane::kCompute)];
}

}  // namespace

Prediction predict(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape,
                   const Profile& profile, const Plan& plan, const Layout& layout, const Rates& rates,
                   const PredictOptions& options) {
  const StepShape step = steady_step(spec, chunks, shape, plan, options);
  const std::int64_t left_out = shape.accumulation - step.micro_batches;
  const double stands_for = static_cast<double>(shape.accumulation) / static_cast<double>(step.micro_batches);
  Prediction result;
  result.schedule = expand(spec, chunks, shape, profile, plan, layout, step);
  PROTRAIN_CHECK(result.schedule.slots_after == step.slots,
                 "a steady step finds other chunks in the slots than it leaves");
  std::vector<TaskTime> times = task_times(result.schedule, spec, chunks, step, rates);
  if (left_out > 0) fold_times(result.schedule, plan.order, stands_for, rates, times);
  result.timeline = simulate(result.schedule, times, rates);
  add_up(result, plan.order, left_out, rates.between_steps);
  const std::int64_t repeated = plan.order == Order::kMicroBatch ? left_out : 0;
  if (const double load = steady_load(result, repeated); load < 1) {
    result.timeline = simulate(result.schedule, times, rates, load);
    add_up(result, plan.order, left_out, rates.between_steps);
  }
  return result;
}

}  // namespace protrain
