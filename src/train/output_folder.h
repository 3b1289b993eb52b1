// output_dir: what is there already, and what a run may do with it. One thread.
#pragma once
#include <filesystem>
#include <optional>

#include "base/files.h"
#include "train/config.h"

namespace protrain {

// The checkpoint to go on from, if any. Makes output_dir. Error(kConfig): a path without a committed checkpoint; a
// fresh run into a folder that holds checkpoints, without overwrite_output_dir.
std::optional<std::filesystem::path> prepare_output_folder(Files&, const TrainConfig&);

}  // namespace protrain
