// What lies already where a model is to be written, so that no one's model is written over or mixed with another.
// Not thread-safe.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "base/files.h"

namespace protrain {

// The first file or folder in `folder` that belongs to a model or a training run: weights of any format, config.json,
// tokenizer files, a checkpoint, a run's configuration. Of another file there is no harm. Nothing when `folder` is not
// there.
std::optional<std::string> model_file_in(Files&, const std::filesystem::path& folder);
std::optional<std::string> weight_file_in(Files&, const std::filesystem::path& folder);  // weights of any format alone

// Before `command` ("export", "init") writes a model to `to`, made from `from`. Error(kConfig) naming the file found:
// unless `overwrite`, for a folder that holds a model; always, for one that holds a checkpoint or a run, for a path
// that is no folder, and for one inside a checkpoint or the output of a run that is going on. init into the folder of
// its config.json is no harm while that holds no weights.
void check_model_target(Files&, const char* command, const std::filesystem::path& from, const std::filesystem::path& to,
                        bool overwrite);

// Makes the folder with its parents, and every new name is on the disk.
void make_synced_folder(Files&, const std::filesystem::path& folder);
// The same for the folder that `what` (a key or a command) names. Error(kConfig) when the system refuses.
void make_target_folder(Files&, const char* what, const std::filesystem::path& folder);

}  // namespace protrain
