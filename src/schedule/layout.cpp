#include "schedule/layout.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "memory/packing.h"
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
              const Plan& plan) {
  validate(spec, chunks, shape, plan);
  const Facts facts(spec, chunks, shape, profile, plan);
  Layout layout = regions(facts);
  auto lived = lives(facts, layout);

  std::vector<bool> touched;
  for (const auto& of_entry : lived) touched.push_back(!of_entry.empty());

  std::array<Bytes, 4> end{};  // by tier
  for (Layout::Entry& entry : layout.entries) {
    if (!entry.whole_run) continue;
    Bytes& own = end.at(static_cast<std::size_t>(entry.range.tier));
    entry.range.offset = own;
    own += round_up(entry.range.bytes, kAlignment);
  }
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    const Bytes base = end.at(static_cast<std::size_t>(tier));
    std::vector<Layout::Entry*> entries;
    std::vector<Allocation> allocations;
    for (std::size_t i = 0; i < layout.entries.size(); ++i) {
      Layout::Entry& entry = layout.entries[i];
      if (entry.whole_run || entry.range.tier != tier || lived[i].empty()) continue;
      entries.push_back(&entry);
      allocations.push_back({entry.range.bytes, std::move(lived[i])});
    }
    const Packing packing = pack(allocations);
    for (std::size_t i = 0; i < entries.size(); ++i) entries[i]->range.offset = base + packing.offsets[i];
    if (tier == Tier::kDevice) layout.live_bound = base + packing.live_bound;
  }
  // What no graph needs takes no room.
  std::vector<Layout::Entry> used;
  for (std::size_t i = 0; i < layout.entries.size(); ++i) {
    if (layout.entries[i].whole_run || touched[i]) used.push_back(layout.entries[i]);
  }
  layout.entries = std::move(used);
  return layout;
}

}  // namespace protrain
