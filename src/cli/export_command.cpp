#include <filesystem>

#include "base/error.h"
#include "base/faulty_files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "train/host_model.h"
#include "train/model_source.h"

namespace protrain::cli {

int export_command(const ExportArguments& arguments) {
  Files& files = environment_files();
  std::error_code absent;
  if (std::filesystem::equivalent(arguments.from, arguments.to, absent)) {
    fail(ExitCode::kConfig, "export: {} is where the model comes from; give another folder to write", arguments.to);
  }
  const auto source = open_model_folder(files, arguments.from);
  HostModel model(source->spec);
  source->weights->load(model.store());
  ExportOptions options;
  options.dtype = export_dtype(arguments.dtype, *source, DType::kF32);
  options.sync = true;
  files.make_directories(arguments.to);
  export_model(files, model.store(), source->config_json, source->folder, arguments.to, options);
  log::info("{} written as {}", arguments.to, transformers_name(options.dtype));
  return 0;
}

}  // namespace protrain::cli
