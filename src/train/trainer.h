// `protrain train`: from a configuration to a trained model in output_dir.
#pragma once
#include "base/error.h"
#include "base/files.h"
#include "train/config.h"
#include "train/progress.h"

namespace protrain {

// Trains, evaluates, saves, exports. Returns kDone, or kInterrupted / kTerminated after a signal, a resumable
// checkpoint saved. Error otherwise; what can be found before the first step is. One call at a time a process (signals,
// LibTorch's threads).
ExitCode train(const TrainConfig&, Files&, const ProgressOptions&);

}  // namespace protrain
