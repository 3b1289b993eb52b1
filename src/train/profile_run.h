// `protrain profile`: from a configuration to the profile of its run on this machine.
#pragma once
#include "train/profile_cache.h"

namespace protrain {

struct ProfiledRun {
  std::unique_ptr<ModelSource> model;
  StoredProfile profile;
};

// Needs what a run needs (the model's config.json, data) and writes nothing but the cache. Errors are those of train()
// before its first step. `progress`: one line a stage.
ProfiledRun profile_run(Files&, const TrainConfig&, bool refresh,
                        const std::function<void(const std::string&)>& progress);

}  // namespace protrain
