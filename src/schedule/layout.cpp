#include "schedule/layout.h"

#include <algorithm>

#include "schedule/expansion.h"

namespace protrain {

namespace {

// Middle micro-batches repeat the one before them; of three the first, a middle and the last differ.
constexpr std::int64_t kMicroBatchesThatDiffer = 3;

// One graph of each kind is enough. What is lent at other times lives by tasks of block calls, saved sets and
// gradients; their order does not depend on what is pending, on what the slots hold, on clipping, or on the shape; and
// a step of fewer micro-batches has a part of them, in the same order (visits.h).
std::vector<StepShape> graphs(const RunShape& shape, const Plan& plan) {
  std::vector<StepShape> result;
  const auto count = [&](std::int64_t planned) {
    return plan.order == Order::kLayer ? planned : std::min(planned, kMicroBatchesThatDiffer);
  };
  if (!shape.train_shapes.empty()) {
    StepShape step;
    step.batch = shape.train_shapes.front();
    step.micro_batches = count(shape.accumulation);
    result.push_back(step);
  }
  if (!shape.eval_shapes.empty()) {
    StepShape step;
    step.graph = Graph::kEvaluate;
    step.batch = shape.eval_shapes.front();
    step.micro_batches = count(shape.eval_micro_batches);
    result.push_back(step);
  }
  return result;
}

// By entry, on one clock for all graphs.
std::vector<std::vector<Interval>> lives(const Facts& facts, const Layout& layout) {
  std::vector<std::vector<Interval>> result(layout.entries.size());
  Id clock = 0;
  for (const StepShape& step : graphs(facts.shape, facts.plan)) {
    Expansion expansion(facts, layout, step);
    add_graph(expansion);
    for (const Life& life : expansion.sketch.lives()) {
      result[life.entry].push_back({clock + life.first, clock + life.last + 1});
    }
    clock += expansion.sketch.size();
  }
  return result;
}

}  // namespace

Layout layout(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape, const Profile& profile,
              const Plan& plan, PackEffort effort) {
  validate(spec, chunks, shape, plan);
  const Facts facts(spec, chunks, shape, profile, plan);
  Layout layout = regions(facts);
  assign_addresses(layout, lives(facts, layout), effort);
  return layout;
}

}  // namespace protrain
