// The mark that makes a checkpoint folder count: written last, it lists every file with its size and digest. Not
// thread-safe.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/files.h"
#include "checkpoint/digest_files.h"

namespace protrain {

// Writes the mark, synced together with the folder. `digests` holds every file of the folder; the files must have been
// synced before.
void write_commit_mark(Files&, const std::filesystem::path& folder, const std::map<std::string, FileDigest>& digests);

enum class Commit : std::uint8_t {
  kWhole,    // the mark is whole, and every file in it is there with its size
  kNone,     // no mark, a damaged one, or other files than it says
  kUnknown,  // the system could not say: what lies there may be whole, so nobody may remove it for this
};
struct CommitCheck {
  Commit commit = Commit::kWhole;
  std::string fault;  // why it is not whole, in one line
};
// Of a folder that is there. Reads no content: that is VerifyingFiles' part.
CommitCheck check_commit(Files&, const std::filesystem::path& folder);

// Before a model is read out of `folder`. Error(kFiles) naming what is missing when it is a training checkpoint of this
// program whose save did not finish, or that lost files since. Of any other folder nothing.
void check_saved(Files&, const std::filesystem::path& folder);

// What the mark says; nothing where there is none, or a damaged one.
std::map<std::string, FileDigest> committed_files(Files&, const std::filesystem::path& folder);

}  // namespace protrain
