#include <filesystem>

#include "base/error.h"
#include "base/faulty_files.h"
#include "base/log.h"
#include "checkpoint/commit_mark.h"
#include "checkpoint/target_folder.h"
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
  check_model_target(files, "export", arguments.from, arguments.to, arguments.overwrite);
  check_saved(files, arguments.from);
  // A checkpoint knows what its files must hold; of another folder this is empty.
  VerifyingFiles verifying(files, arguments.from, committed_files(files, arguments.from));
  const auto source = open_model_folder(verifying, arguments.from);
  HostModel model(source->spec);
  source->weights->load(model.store());
  if (const std::string fault = verifying.fault_of_opened(); !fault.empty()) fail(ExitCode::kFiles, "{}", fault);
  ExportOptions options;
  options.dtype = export_dtype(arguments.dtype, *source, DType::kF32);
  options.sync = true;
  make_target_folder(files, "export", arguments.to);
  options.replace_companions = arguments.overwrite;
  export_model(files, model.store(), source->config_json, source->folder, arguments.to, options);
  log::info("{} written as {}", arguments.to, transformers_name(options.dtype));
  return 0;
}

}  // namespace protrain::cli
