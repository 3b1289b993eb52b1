#include "train/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/training_checkpoint.h"

namespace protrain {
namespace fs = std::filesystem;

OutputLock::OutputLock(Files& files, const fs::path& output) {
  if (files.exists(output) && !fs::is_directory(output)) {
    fail(ExitCode::kConfig, "output_dir: {} is a file; it must be a folder", output.string());
  }
  files.make_directories(output);
  descriptor_ = open((output / ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  // A file system without locks: nothing to hold.
  if (descriptor_ < 0 || flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(descriptor_);
  fail(ExitCode::kConfig, "output_dir: another run is writing to {}; wait for it, or give another folder",
       output.string());
}

OutputLock::~OutputLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::optional<fs::path> prepare_output_folder(Files& files, const TrainConfig& config) {
  const fs::path output = config.output_dir;
  std::error_code unknown;  // a path that cannot be resolved is refused where it is opened
  const fs::path model = fs::weakly_canonical(config.model_name_or_path, unknown);
  const fs::path folder = fs::weakly_canonical(output, unknown);
  if (!config.model_name_or_path.empty() &&
      (model == folder || (config.overwrite_output_dir && model.parent_path() == folder))) {
    fail(ExitCode::kConfig, "output_dir: {} holds the model to start from ({}); give another folder", output.string(),
         config.model_name_or_path);
  }
  if (config.resume_from_checkpoint == "true") {
    std::optional<fs::path> newest = newest_checkpoint(files, output);
    if (!newest)
      log::warning("resume_from_checkpoint: {} holds no checkpoint; starting from the beginning", output.string());
    return newest;
  }
  if (!config.resume_from_checkpoint.empty()) {
    const fs::path chosen = config.resume_from_checkpoint;
    if (!fs::is_directory(chosen)) {
      fail(ExitCode::kConfig, "resume_from_checkpoint: {} is not a folder; give a checkpoint's path, or true",
           chosen.string());
    }
    return chosen;
  }
  if (const std::optional<fs::path> old = newest_checkpoint(files, output)) {
    if (!config.overwrite_output_dir) {
      fail(ExitCode::kConfig,
           "output_dir: {} belongs to an earlier run: give resume_from_checkpoint: true to go on, another output_dir, "
           "or overwrite_output_dir: true to drop it",
           old->string());
    }
  }
  return std::nullopt;
}

}  // namespace protrain
