// output_dir: what is there already, and what a run may do with it. One thread.
#pragma once
#include <filesystem>
#include <optional>

#include "base/files.h"
#include "train/config.h"

namespace protrain {

// One run at a time writes to a folder. Makes it. Error(kConfig) while another process holds the lock.
class OutputLock {
 public:
  OutputLock(Files&, const std::filesystem::path& output);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  int descriptor_ = -1;
};

// The checkpoint to go on from, if any. Removes nothing. Error(kConfig): a path without a committed checkpoint; a fresh
// run into a folder that holds checkpoints, without overwrite_output_dir; a folder that holds the model to start from.
std::optional<std::filesystem::path> prepare_output_folder(Files&, const TrainConfig&);

}  // namespace protrain
