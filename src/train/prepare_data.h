// Raw data files -> one prepared token file, made once by the Python part and kept under a name made from the content
// of everything that shapes it. One thread.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "train/config.h"

namespace protrain {

// .ptk, llm.c or LLMQ by its first bytes. Error(kData) when it cannot be read.
bool is_prepared(Files&, const std::filesystem::path&);

// Wildcards expanded, in order, names of each pattern sorted. A part `**` of a pattern is any
// number of folders, none too, but for hidden ones and links; files that it names twice count once. Error(kData) naming
// a pattern or file that is not there, or that is no regular file.
std::vector<std::filesystem::path> expand_patterns(const std::vector<std::string>& patterns, std::string_view key);

struct PreparedFile {
  std::filesystem::path path;
  bool found_in_cache = false;  // made by an earlier run: damage is mended by making it anew
};

enum class Cache : std::uint8_t { kUse, kRenew };  // kRenew makes the cached file again although it is there

// The prepared file for `patterns` (the value of `key`): itself, or the cached result. Raw data whose ids are not below
// `vocabulary` is refused by file and line. The Python part's exit code and message become the Error, Error(kData) what
// cannot be read or written. The preparing process ends when this one does. Interrupted when a signal came.
PreparedFile prepared_file(Files&, const TrainConfig&, const std::vector<std::string>& patterns, std::string_view key,
                           std::int64_t vocabulary, Cache = Cache::kUse);
// What prepared_file() would take as it is; none where it would prepare.
std::optional<std::filesystem::path> find_prepared(Files&, const TrainConfig&, const std::vector<std::string>& patterns,
                                                   std::string_view key, std::int64_t vocabulary);

}  // namespace protrain
