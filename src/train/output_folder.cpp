#include "train/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <system_error>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/target_folder.h"

namespace protrain {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTraceStart = "trace-step-", kTraceEnd = ".json";

}  // namespace

OutputLock::OutputLock(Files& files, const fs::path& output) {
  if (files.exists(output) && !folder_fault(output).empty()) {
    fail(ExitCode::kConfig, "output_dir: {} is a file; it must be a folder", output.string());
  }
  make_target_folder(files, "output_dir", output);
  descriptor_ = open((output / ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (descriptor_ < 0 && (errno == EROFS || errno == EACCES || errno == EPERM)) {
    fail(ExitCode::kConfig, "output_dir: {} cannot be written to: {}; give a folder that can be", output.string(),
         std::generic_category().message(errno));
  }
  // A file system without locks: nothing to hold.
  if (descriptor_ < 0 || flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(descriptor_);
  fail(ExitCode::kConfig, "output_dir: another run is writing to {}; wait for it, or give another folder",
       output.string());
}

OutputLock::~OutputLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

namespace {

// One spelling for each path. One that cannot be resolved is refused where it is opened.
fs::path resolved(const fs::path& path) {
  std::error_code unknown;
  fs::path full = fs::weakly_canonical(path, unknown);
  if (!full.has_filename()) full = full.parent_path();  // "out/"
  return full;
}

bool same_place(const fs::path& a, const fs::path& b) { return resolved(a) == resolved(b); }

bool lies_in(const fs::path& path, const fs::path& folder) { return resolved(path).parent_path() == resolved(folder); }

void refuse_model_of_this_run(const TrainConfig& config) {
  if (config.model_name_or_path.empty()) return;
  if (same_place(config.model_name_or_path, config.output_dir) ||
      (config.overwrite_output_dir && lies_in(config.model_name_or_path, config.output_dir))) {
    fail(ExitCode::kConfig, "output_dir: {} holds the model to start from ({}); give another folder", config.output_dir,
         config.model_name_or_path);
  }
}

// A run that does not go on from what lies in output_dir would write over it.
void refuse_foreign_output(Files& files, const TrainConfig& config) {
  if (config.overwrite_output_dir) return;
  const fs::path output = config.output_dir;
  if (const std::optional<fs::path> old = newest_checkpoint(files, output)) {
    fail(ExitCode::kConfig,
         "output_dir: {} belongs to an earlier run: give resume_from_checkpoint: true to go on, another output_dir, or "
         "overwrite_output_dir: true to start anew",
         old->string());
  }
  // config_name and tokenizer_name may name the folder itself: their files are this run's.
  const bool of_this_run = same_place(config.config_name, output) || same_place(config.tokenizer_name, output);
  if (const auto found = of_this_run ? weight_file_in(files, output) : model_file_in(files, output)) {
    if (*found == kRunConfigFile) return;  // a run that ended before it wrote a model
    fail(ExitCode::kConfig,
         "output_dir: {} holds a model already, which the trained one would replace: give another output_dir, or "
         "overwrite_output_dir: true",
         (output / *found).string());
  }
}

std::vector<fs::path> checkpoints_of(Files& files, const fs::path& output) {
  FoundCheckpoints found = find_checkpoints(files, output);
  const std::string faults = fmt::format("{}", fmt::join(found.faults, "; "));
  if (found.complete.empty() && !found.faults.empty()) {
    throw DamagedCheckpoint(
        fmt::format("resume_from_checkpoint: {} holds no complete checkpoint: {}; mend or move it, or give "
                    "resume_from_checkpoint: false and overwrite_output_dir: true to start anew",
                    output.string(), faults));
  }
  if (found.complete.empty()) {
    log::info("resume_from_checkpoint: {} holds no checkpoint; starting from the beginning", output.string());
  } else if (!found.faults.empty()) {
    log::warning("{}; going on from {}", faults, found.complete.front().string());
  }
  return std::move(found.complete);
}

}  // namespace

std::vector<fs::path> prepare_output_folder(Files& files, const TrainConfig& config) {
  refuse_model_of_this_run(config);
  if (config.resume_from_checkpoint == "true") {
    std::vector<fs::path> checkpoints = checkpoints_of(files, config.output_dir);
    if (checkpoints.empty()) refuse_foreign_output(files, config);
    return checkpoints;
  }
  if (config.resume_from_checkpoint.empty()) {
    refuse_foreign_output(files, config);
    return {};
  }
  const fs::path chosen = config.resume_from_checkpoint;
  if (const std::string fault = folder_fault(chosen); !fault.empty() && !committed_folder(files, chosen)) {
    fail(ExitCode::kConfig, "resume_from_checkpoint: {} {}; give a checkpoint's path, or true", chosen.string(), fault);
  }
  if (!lies_in(chosen, config.output_dir)) refuse_foreign_output(files, config);
  check_complete(files, chosen);
  return {chosen};
}

Resumed load_first(Files& files, const std::vector<fs::path>& checkpoints, const fs::path& output, ChunkStore& store) {
  PROTRAIN_CHECK(!checkpoints.empty());
  for (std::size_t i = 0;; ++i) {
    try {
      Resumed resumed = {.from = checkpoints[i], .state = load_checkpoint(files, checkpoints[i], store)};
      const auto own = committed_folder(files, checkpoint_path(output, resumed.state.step));
      resumed.own = own && same_place(*own, resumed.from);
      return resumed;
    } catch (const DamagedCheckpoint& damaged) {
      if (i + 1 == checkpoints.size()) throw;
      log::warning("{}; going on from {}", damaged.what(), checkpoints[i + 1].string());
    }
  }
}

void leave_other_branch(Files& files, const Resumed& resumed, const fs::path& output) {
  std::int64_t last = resumed.own ? resumed.state.step : resumed.state.step - 1;
  if (!lies_in(resumed.from, output)) last = -1;
  std::vector<std::string> kept;
  for (const fs::path& path : set_aside_after(files, output, last)) kept.push_back(path.filename().string());
  if (kept.empty()) return;
  log::info("going on from step {}: later checkpoints in {} are of another branch; kept as {}", resumed.state.step,
            output.string(), fmt::join(kept, ", "));
}

std::string trace_file(std::int64_t step) { return fmt::format("{}{}{}", kTraceStart, step, kTraceEnd); }

void remove_traces_after(Files& files, const fs::path& output, std::int64_t step) {
  for (const std::string& name : files.list(output)) {
    if (!name.starts_with(kTraceStart) || !name.ends_with(kTraceEnd)) continue;
    std::int64_t of = 0;
    const char* const begin = name.data() + kTraceStart.size();
    const char* const end = name.data() + name.size() - kTraceEnd.size();
    const auto [rest, error] = std::from_chars(begin, end, of);
    if (error == std::errc() && rest == end && of > step) files.remove_all(output / name);
  }
}

}  // namespace protrain
