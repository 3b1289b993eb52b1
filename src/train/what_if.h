// What `protrain train` would do, here or on hardware that is not there: plan, bytes and step time, from a profile that
// was measured or from an estimate. Needs config.json of the model, neither weights nor a GPU. One thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "train/model_source.h"
#include "train/run_plan.h"

namespace protrain {

// Where nothing is said: what this machine has, or what the hardware's file says.
struct WhatIfOptions {
  std::string hardware, profile;                     // files
  std::optional<Bytes> device_memory, host_memory;   // that there is
  std::optional<double> h2d_bytes, d2h_bytes, disk;  // a second
  int gpus = 1;
};

struct WhatIf {
  std::unique_ptr<ModelSource> model;
  std::string machine;
  RunPlan run;                     // run.found.missing: what does not fit
  std::string nearest_change;      // where it does not: what would
  std::int64_t micro_batch = 0;    // rows
  std::vector<std::string> notes;  // what was presumed or left aside, a line each
  bool estimate() const { return !run.rates.measured; }
  bool fits() const { return run.found.missing.fits(); }
};

// Error(kConfig) for options, knobs and files that cannot be; a plan that does not fit is an answer.
WhatIf what_if(Files&, const TrainConfig&, const WhatIfOptions&);

// The answer in lines; as one JSON object ("schema": 1).
std::vector<std::string> what_if_lines(const WhatIf&);
std::string what_if_json(const WhatIf&);
// Of a plan that does not fit: one line.
std::string what_is_missing(const WhatIf&);

}  // namespace protrain
