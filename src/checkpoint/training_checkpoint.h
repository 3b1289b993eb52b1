// checkpoint-<step>/: an HF-loadable model plus everything that resume needs. Written aside, synced, commit mark last:
// a folder counts only with its mark, whatever happened to the process. Not thread-safe; not while a schedule runs.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_files.h"

namespace protrain {

struct TrainingState {
  std::int64_t step = 0;             // updates seen, skipped ones included: position in data and schedule
  std::int64_t applied_updates = 0;  // Adam's t
  std::uint64_t data_fingerprint = 0;
  std::string extra_json;  // what train/ adds (resolved config, log history, ...), a JSON object
};

struct SaveOptions {
  int keep_last = 0;        // save_total_limit; 0 = all. The newest that can be resumed from stays besides
  bool model_only = false;  // no optimizer state: it cannot be resumed from
  ExportOptions model;
};

// Returns the committed folder. Older committed ones are removed only after the new one is committed; one of the same
// step is replaced, and is whole under another name until then. On an Error (disk full, a weight or moment that is not
// finite: Error(kNonFinite)) what was there before still is, and the message says which checkpoint that is.
std::filesystem::path save_checkpoint(Files&, const ChunkStore&, const TrainingState&, const std::string& config_json,
                                      const std::optional<std::filesystem::path>& source,
                                      const std::filesystem::path& output_dir, const SaveOptions&);
// Newest committed checkpoint of output_dir, if any. Incomplete ones are ignored. Its name is another than
// checkpoint-<step> when the process died while it took its place; the next save puts that right.
std::optional<std::filesystem::path> newest_checkpoint(Files&, const std::filesystem::path& output_dir);

// What output_dir holds, by marks and sizes alone.
struct FoundCheckpoints {
  // Newest first; those of the model alone only where there are no others.
  std::vector<std::filesystem::path> complete;
  // Why those newer than all of these are passed over, newest first, a line each.
  std::vector<std::string> faults;
};
FoundCheckpoints find_checkpoints(Files&, const std::filesystem::path& output_dir);

// A checkpoint whose files are not those that were saved: an older one may still be whole.
class DamagedCheckpoint : public Error {
 public:
  explicit DamagedCheckpoint(const std::string& message) : Error(ExitCode::kFiles, message) {}
};
// Throws DamagedCheckpoint for a folder that is there without a valid mark, or with a file missing or cut.
void check_complete(Files&, const std::filesystem::path& checkpoint);

// Restores weights, residuals, moments bit for bit (whatever chunk sizes, and into the other compute dtype by way of
// the exact masters) and returns the rest. DamagedCheckpoint naming the file when there is no valid mark, or a file is
// missing or has other bytes than were saved (found while reading, so the store may be half filled then). Error(kFiles)
// for another model's shapes, weights or moments that are not finite, v < 0, a checkpoint of the model alone.
TrainingState load_checkpoint(Files&, const std::filesystem::path& checkpoint, ChunkStore&);
// Keeps every checkpoint-<n>, n > step, committed or not, under a name that no search finds. Durable; a death on the
// way loses none. Returns the new names.
std::vector<std::filesystem::path> set_aside_after(Files&, const std::filesystem::path& output_dir, std::int64_t step);
// Removes every committed checkpoint of output_dir and what deaths left behind.
void remove_checkpoints(Files&, const std::filesystem::path& output_dir);

}  // namespace protrain
