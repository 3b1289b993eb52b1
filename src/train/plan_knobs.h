// The knobs of the plan that the user set: what the search has to leave alone. Immutable; thread-safe.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "search/search.h"
#include "train/config.h"

namespace protrain {

class PlanKnobs {
 public:
  // Of `plan` (file or JSON text; of an answer of `protrain plan --json` its plan), `chunk_bytes` and `recompute`.
  // Error(kConfig) for text that is no JSON object and for a knob that is set in two ways. Knobs themselves are read by
  // space().
  PlanKnobs(Files&, const TrainConfig&);
  // None of them set.
  PlanKnobs() = default;

  bool any() const;                                      // a knob of the plan
  const std::string& source() const { return source_; }  // the plan's file, or where in the configuration it stands

  // Knobs that are not set are free, but for chunk_bytes where `place` lists chunks. Error(kConfig) as parse_plan().
  SearchSpace space(const ModelSpec&, DType compute) const;

 private:
  bool sets(std::string_view key) const;                   // a key of the plan
  std::optional<std::string_view> activation_key() const;  // that is set: modes or a count

  std::string json_ = "{}";
  std::string source_;
  Switch recompute_ = Switch::kAuto;
};

}  // namespace protrain
