// The mark that makes a checkpoint folder count: written last, it lists every file with its size and digest. Not
// thread-safe.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "base/files.h"
#include "checkpoint/digest_files.h"

namespace protrain {

// Writes the mark, synced together with the folder. `digests` holds every file of the folder; the files must have been
// synced before.
void write_commit_mark(Files&, const std::filesystem::path& folder, const std::map<std::string, FileDigest>& digests);

// Empty when the folder has a mark that is whole and every file in it is there with its size; else why not, in one
// line. Reads no content: that is VerifyingFiles' part.
std::string commit_fault(Files&, const std::filesystem::path& folder);

// Before a model is read out of `folder`. Error(kFiles) naming what is missing when it is a training checkpoint of this
// program whose save did not finish, or that lost files since. Of any other folder nothing.
void check_saved(Files&, const std::filesystem::path& folder);

// What the mark says, of a folder without a commit_fault.
std::map<std::string, FileDigest> committed_files(Files&, const std::filesystem::path& folder);

}  // namespace protrain
