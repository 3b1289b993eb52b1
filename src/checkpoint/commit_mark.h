// The mark that makes a checkpoint folder count: written last, it lists every file with its size. Not thread-safe.
#pragma once
#include <filesystem>
#include <string>

#include "base/files.h"

namespace protrain {

// Lists the folder's files and writes the mark, synced together with the folder. The files must have been synced
// before.
void write_commit_mark(Files&, const std::filesystem::path& folder);

// Empty when the folder has a mark that is whole and every file in it is there with its size; else why not, in one
// line.
std::string commit_fault(Files&, const std::filesystem::path& folder);

}  // namespace protrain
