// Raw data files -> one prepared token file, made once by the Python part and kept under a name made from the content
// of everything that shapes it. One thread.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "train/config.h"

namespace protrain {

// .ptk, llm.c or LLMQ by its first bytes. Error(kData) when it cannot be read.
bool is_prepared(Files&, const std::filesystem::path&);

// Wildcards expanded, in order, names of each pattern sorted. Error(kConfig) naming a pattern or file that is not
// there.
std::vector<std::filesystem::path> expand_patterns(const std::vector<std::string>& patterns, std::string_view key);

// The prepared file for `patterns` (the value of `key`): itself, or the cached result. The Python part's exit code and
// message become the Error. Interrupted when a signal came.
std::filesystem::path prepared_file(Files&, const TrainConfig&, const std::vector<std::string>& patterns,
                                    std::string_view key);

}  // namespace protrain
