// Finds the fastest plan that fits. Two stages: a closed-form lower bound on the time of every plan of the space with
// the memory that it takes at least; the plans that it does not rule out are laid out exactly and simulated, the most
// promising first. Pure; thread-safe; deterministic.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/budget.h"
#include "schedule/simulate.h"

namespace protrain {

// A plan with all its bytes.
struct PlannedMemory {
  Plan plan;
  std::vector<Chunk> chunks;
  Layout layout;
};
PlannedMemory plan_memory(const ModelSpec&, const RunShape&, const Profile&, Plan);

// What may be chosen. A knob that has a value is fixed.
struct SearchSpace {
  std::optional<Bytes> chunk_bytes;
  std::optional<int> n_persist, n_buffer, gradient_slots, offload_distance;
  std::optional<Order> order;                         // free where there is one micro-batch: the two are the same then
  std::optional<std::vector<Activation>> activation;  // by block of ModelSpec
  std::optional<int> n_swap, n_keep_light, n_recompute, n_recompute_host, swap_interval;
  bool may_keep = true, may_recompute = true;     // recompute: true / false of the configuration
  std::optional<std::vector<UpdatePlace>> place;  // by chunk; needs a fixed chunk_bytes
  std::optional<int> n_resident;                  // of the persistent body chunks, the first ones
  std::optional<UpdatePlace> embedding, head;
  Tier state_tier = Tier::kPageable;
  bool chunk_a_layer = false;            // without chunk_bytes: chunks of one layer's weights
  bool persistent_are_resident = false;  // n_resident = n_persist
  // ProTrain's four: n_persist, n_buffer, n_swap and n_recompute are free, one chunk a layer, updates on the CPU but
  // for persistent chunks.
  static SearchSpace published();
};

struct SearchLimits {
  int simulations = 500;  // at most
  // A plan that updates everything on the host has to be so much faster than one that leaves it on the device: it leans
  // on links and host memory that others may use too.
  double caution = 0.01;
  double tolerance = 0.002;  // ends when no bound is below (1 - tolerance) x the best simulated time
  double enumerate = 20000;  // every plan of a space of so many is bounded; of larger ones a grid, refined
};

struct RunnerUp {
  Plan plan;
  double step_seconds = 0;
  std::string why;  // it lost, in a few words: "1.4 % slower: h2d works 98 % of the step"
};

struct SearchResult {
  PlannedMemory memory;  // the fastest that fits; when none does, the one that lacks least
  Shortfall missing;
  Prediction prediction;              // not folded; of `memory`, also when it does not fit
  std::optional<RunnerUp> runner_up;  // the best plan that differs in more than slot counts
  std::string binding;                // which limit binds: "device memory", "host memory", or the lane that is busiest
  double space = 0;                   // plans in the space
  std::int64_t bounded = 0;           // plans, or families of plans, whose bound was computed
  int simulated = 0;
  double bound_seconds = 0, seconds = 0;
};

// Error(kConfig) when the space's fixed knobs allow no plan at all, as validate() says it.
SearchResult search(const ModelSpec&, const RunShape&, const Profile&, const Rates&, const MemoryLimits&,
                    const SearchSpace& = {}, const PredictOptions& = {}, const SearchLimits& = {});

// "3 of 30 layer chunks streamed through 4 slots, updates of 12 of 32 chunks on the host, activations 20 keep, 10
// recompute".
std::string describe(const ModelSpec&, const PlannedMemory&);

}  // namespace protrain
