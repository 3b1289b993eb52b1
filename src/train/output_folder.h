// output_dir: what is there already, and what a run may do with it. One thread.
#pragma once
#include <filesystem>
#include <vector>

#include "base/files.h"
#include "checkpoint/training_checkpoint.h"
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

// The checkpoints to go on from, in the order in which to try them; none for a run from the beginning. Changes nothing.
// Error(kConfig): a path that is no folder; without overwrite_output_dir, a folder that holds another run's checkpoints
// or a model; always, one that holds the model to start from. DamagedCheckpoint: the one given is not complete, or
// there are only such.
std::vector<std::filesystem::path> prepare_output_folder(Files&, const TrainConfig&);

struct Resumed {
  std::filesystem::path from;
  TrainingState state;
  bool own = false;  // `from` is checkpoint-<step> of the output folder, or stands for it
};
// Loads the first of `checkpoints` (not empty) that is not damaged, with a warning about those that are.
Resumed load_first(Files&, const std::vector<std::filesystem::path>& checkpoints, const std::filesystem::path& output,
                   ChunkStore&);
// Once nothing can refuse the run any more: what lies in `output` beyond the place resumed from is of a branch that
// this run leaves. It is kept, under names that no search finds, so that a later resume does not take it for this
// run's.
void leave_other_branch(Files&, const Resumed&, const std::filesystem::path& output);

// Name of the measured trace of a step (from 1).
std::string trace_file(std::int64_t step);
// Traces of steps that this run has not made, as it starts or goes on after `step`: they are of an earlier run, or of
// another branch.
void remove_traces_after(Files&, const std::filesystem::path& output, std::int64_t step);

}  // namespace protrain
