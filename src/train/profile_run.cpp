#include "train/profile_run.h"

namespace protrain {

ProfiledRun profile_run(Files& files, const TrainConfig& config, bool refresh,
                        const std::function<void(const std::string&)>& progress) {
  ProfiledRun run;
  run.model = open_model(files, config);
  const DataSources data = open_data(files, config, run.model->spec);
  MeasuredModel measured = measure_model(config, *run.model, data);
  run.profile =
      profile_of(files, config, *run.model, measured, refresh ? ProfileCache::kRenew : ProfileCache::kKeep, progress);
  return run;
}

}  // namespace protrain
