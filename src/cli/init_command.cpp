#include "base/faulty_files.h"
#include "base/log.h"
#include "checkpoint/target_folder.h"
#include "cli/commands.h"
#include "train/host_model.h"
#include "train/model_source.h"

namespace protrain::cli {

int init_command(const InitArguments& arguments) {
  Files& files = environment_files();
  check_model_target(files, "init", arguments.config, arguments.to, arguments.overwrite);
  const auto source = open_config_folder(files, arguments.config);
  HostModel model(source->spec);
  fill_random(model.store(), static_cast<std::uint64_t>(arguments.seed));
  ExportOptions options;
  options.dtype = export_dtype(arguments.dtype, *source, DType::kF32);
  options.sync = true;
  make_target_folder(files, "init", arguments.to);
  options.replace_companions = arguments.overwrite;
  export_model(files, model.store(), source->config_json, source->folder, arguments.to, options);
  log::info("{}: {} random weights (seed {}) as {}", arguments.to, source->spec.parameter_count(), arguments.seed,
            transformers_name(options.dtype));
  return 0;
}

}  // namespace protrain::cli
