#include "base/faulty_files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "train/host_model.h"
#include "train/model_source.h"

namespace protrain::cli {

int init_command(const InitArguments& arguments) {
  Files& files = environment_files();
  const auto source = open_config_folder(files, arguments.config);
  HostModel model(source->spec);
  fill_random(model.store(), arguments.seed);
  ExportOptions options;
  options.dtype = export_dtype(arguments.dtype, *source, DType::kF32);
  options.sync = true;
  files.make_directories(arguments.to);
  export_model(files, model.store(), source->config_json, source->folder, arguments.to, options);
  log::info("{}: {} random weights (seed {}) as {}", arguments.to, source->spec.parameter_count(), arguments.seed,
            transformers_name(options.dtype));
  return 0;
}

}  // namespace protrain::cli
