#include "train/profile_run.h"

namespace protrain {

ProfiledRun profile_run(Files& files, const TrainConfig& config, bool refresh,
                        const std::function<void(const std::string&)>& progress) {
  TrainConfig own = config;
  if (own.per_device_train_batch_size == 0) {
    own.per_device_train_batch_size = 1;
    own.gradient_accumulation_steps = own.train_batch_size;
    progress("per_device_train_batch_size: auto: micro-batches of one row are profiled; give a number for others");
  }
  ProfiledRun run;
  run.model = open_model(files, own);
  const DataSources data = open_data(files, own, run.model->spec);
  MeasuredModel measured = measure_model(own, *run.model, data);
  run.profile =
      profile_of(files, own, *run.model, measured, refresh ? ProfileCache::kRenew : ProfileCache::kKeep, progress);
  return run;
}

}  // namespace protrain
