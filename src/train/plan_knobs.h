// The knobs of the plan that the user set, and what the automatic choice may still set beside them. Immutable;
// thread-safe.
#pragma once
#include <string>

#include "base/files.h"
#include "plan/plan.h"
#include "train/config.h"

namespace protrain {

// What the automatic choice varies. Values of the user's take precedence, knob by knob.
struct Rung {
  Activation activation = Activation::kKeep;  // of all layers
  int n_persist = 0;                          // body chunks
  int n_resident = 0;                         // body chunks, of those
  UpdatePlace ends = UpdatePlace::kResident;  // embedding and head
  bool fewest_slots = false;
  bool operator==(const Rung&) const = default;
};

class PlanKnobs {
 public:
  // Of `plan` (file or JSON text), `chunk_bytes` and `recompute`. Error(kConfig) for text that is no JSON object and
  // for a knob that is set in two ways. Knobs themselves are read by plan().
  PlanKnobs(Files&, const TrainConfig&);
  // None of them set.
  PlanKnobs() = default;

  bool any() const { return !json_.empty(); }
  bool sets(std::string_view key) const;  // a key of the plan
  bool sets_activation() const;           // as modes or as counts
  Switch recompute() const { return recompute_; }
  const std::string& source() const { return source_; }  // the plan's file, or where in the configuration it stands

  int body_chunks(const ModelSpec&, DType compute) const;
  // Slots beyond the fewest: 2 of weights and 1 of gradients, so that loads and ways out run beside compute.
  // Error(kConfig) as parse_plan(), or for what a rung cannot be combined with.
  Plan plan(const ModelSpec&, DType compute, const Rung&) const;

 private:
  std::string json_;  // an object
  std::string source_;
  Switch recompute_ = Switch::kAuto;
};

}  // namespace protrain
