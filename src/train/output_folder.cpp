#include "train/output_folder.h"

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/training_checkpoint.h"

namespace protrain {
namespace fs = std::filesystem;

std::optional<fs::path> prepare_output_folder(Files& files, const TrainConfig& config) {
  const fs::path output = config.output_dir;
  if (files.exists(output) && !fs::is_directory(output)) {
    fail(ExitCode::kConfig, "output_dir: {} is a file; it must be a folder", output.string());
  }
  files.make_directories(output);
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
           "or "
           "overwrite_output_dir: true to drop it",
           old->string());
    }
    remove_checkpoints(files, output);
  }
  return std::nullopt;
}

}  // namespace protrain
