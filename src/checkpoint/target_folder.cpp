#include "checkpoint/target_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/folder_names.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

bool is_weights(const std::string& name) { return is_weight_file(name) || is_other_weights(name); }

template <typename Predicate>
std::optional<std::string> first_name(Files& files, const fs::path& folder, Predicate matches) {
  if (!folder_fault(folder).empty()) return std::nullopt;
  for (const std::string& name : files.list(folder)) {
    if (matches(name)) return name;
  }
  return std::nullopt;
}

// A checkpoint itself, or the output of a run.
std::optional<std::string> run_file_in(Files& files, const fs::path& folder) {
  if (const std::vector<std::int64_t> steps = named_steps(files, folder); !steps.empty()) {
    return checkpoint_path({}, steps.back()).string();
  }
  return first_name(files, folder, [](const std::string& name) {
    return name == kCommitFile || name == kTrainerStateFile || name == kRunConfigFile;
  });
}

bool has_live_run(const fs::path& folder) {
  const int descriptor = open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool live = flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(descriptor);
  return live;
}

// A model in a checkpoint would be taken for its files, and go with it.
void refuse_inside_run(Files& files, const char* command, const fs::path& to) {
  std::error_code unknown;
  const fs::path full = fs::weakly_canonical(fs::absolute(to, unknown), unknown);
  for (fs::path folder = full.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    const bool checkpoint = files.exists(folder / kCommitFile);
    if (!checkpoint && !has_live_run(folder)) continue;
    fail(ExitCode::kConfig, "{}: {} lies in {}, which is {}; give another folder", command, to.string(),
         folder.string(), checkpoint ? "a checkpoint" : "the output_dir of a run that is going on");
  }
}

}  // namespace

std::optional<std::string> weight_file_in(Files& files, const fs::path& folder) {
  return first_name(files, folder, is_weights);
}

std::optional<std::string> model_file_in(Files& files, const fs::path& folder) {
  // The most telling first.
  if (auto weights = weight_file_in(files, folder)) return weights;
  if (!folder_fault(folder).empty()) return std::nullopt;
  if (auto run = run_file_in(files, folder)) return run;
  return first_name(files, folder, [](const std::string& name) { return name == kConfigFile || is_companion(name); });
}

void check_model_target(Files& files, const char* command, const fs::path& from, const fs::path& to, bool overwrite) {
  refuse_inside_run(files, command, to);
  std::error_code absent;
  const fs::file_status status = fs::status(to, absent);
  if (status.type() == fs::file_type::not_found) return;
  if (const std::string fault = folder_fault(to); !fault.empty()) {
    fail(ExitCode::kConfig, "{}: {} {}; give a folder to write to", command, to.string(), fault);
  }
  if (const auto run = run_file_in(files, to)) {
    fail(ExitCode::kConfig, "{}: {} is of a training run (it holds {}); give another folder", command, to.string(),
         *run);
  }
  if (overwrite) return;
  const auto found = fs::equivalent(from, to, absent) ? weight_file_in(files, to) : model_file_in(files, to);
  if (!found) return;
  fail(ExitCode::kConfig, "{}: {} holds another model's {}; give another folder, or --overwrite to write over it",
       command, to.string(), *found);
}

void make_synced_folder(Files& files, const fs::path& folder) {
  std::vector<fs::path> holders;                                           // of the new names
  fs::path level = folder.has_filename() ? folder : folder.parent_path();  // "out/"
  for (; !level.empty() && !files.exists(level); level = level.parent_path()) {
    holders.push_back(level.has_parent_path() ? level.parent_path() : ".");
  }
  files.make_directories(folder);
  for (const fs::path& holder : holders) files.sync_directory(holder);
}

void make_target_folder(Files& files, const char* what, const fs::path& folder) try {
  make_synced_folder(files, folder);
} catch (const Error& error) {
  fail(ExitCode::kConfig, "{}: {}; give a folder that can be made", what, error.what());
}

}  // namespace protrain
