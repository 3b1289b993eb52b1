#include "checkpoint/checkpoint_folders.h"

#include <fmt/core.h>

#include <charconv>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/commit_mark.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "checkpoint-";
constexpr std::string_view kPartial = ".partial", kReplaced = ".replaced", kRemoved = ".removed";

fs::path hidden(const fs::path& checkpoint, std::string_view suffix) {
  return checkpoint.parent_path() / fmt::format(".{}{}", checkpoint.filename().string(), suffix);
}

std::optional<std::int64_t> number_after(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || name.empty() || number < 0) return std::nullopt;
  if (name.size() > 1 && name.front() == '0') return std::nullopt;  // not how a number is written
  return number;
}

std::optional<std::int64_t> step_of(std::string_view name) { return number_after(kName, name); }

// The step of ".checkpoint-<step><suffix>".
std::optional<std::int64_t> hidden_step(std::string_view name, std::string_view suffix) {
  if (!name.starts_with('.') || !name.ends_with(suffix) || name.size() < suffix.size() + 1) return std::nullopt;
  return step_of(name.substr(1, name.size() - suffix.size() - 1));
}

// ".checkpoint-<step>.removed", with or without "-<n>".
bool is_removed(std::string_view name) {
  const std::size_t at = name.find(kRemoved);
  if (at == std::string_view::npos) return false;
  const std::size_t end = at + kRemoved.size();
  return hidden_step(name.substr(0, end), kRemoved) && (end == name.size() || number_after("-", name.substr(end)));
}

bool committed(Files& files, const fs::path& folder) {
  return files.exists(folder) && check_commit(files, folder).commit == Commit::kWhole;
}

fs::path free_name(Files& files, const fs::path& base) {
  for (int i = 1;; ++i) {
    fs::path path = base.string() + fmt::format("-{}", i);
    if (!files.exists(path)) return path;
  }
}

void rename_synced(Files& files, const fs::path& from, const fs::path& to) {
  files.rename(from, to);
  files.sync_directory(to.parent_path());
}

template <typename Removal>
void or_warn(Removal removal) try {
  removal();
} catch (const Error& error) {
  log::warning("what is no longer needed could not be removed: {}; the next save tries again", error.what());
}

// An Error only while the folder still counts.
void discard(Files& files, const fs::path& folder, const fs::path& checkpoint) {
  fs::path removed = hidden(checkpoint, kRemoved);
  if (files.exists(removed)) removed = free_name(files, removed);
  rename_synced(files, folder, removed);
  or_warn([&] { files.remove_all(removed); });
}

// Under a name that does not count.
fs::path keep(Files& files, const fs::path& folder, const fs::path& checkpoint) {
  fs::path kept = free_name(files, checkpoint.string() + ".set-aside");
  files.rename(folder, kept);
  return kept;
}

// Another program's, damaged, or not to be read.
void make_way(Files& files, const fs::path& folder, const fs::path& checkpoint) {
  const fs::path kept = keep(files, folder, checkpoint);
  files.sync_directory(kept.parent_path());
  log::warning("{}: not known to be a complete checkpoint; it is kept as {}", folder.string(), kept.string());
}

void warn_unknown(const fs::path& folder, const std::string& fault) {
  log::warning("{} stays: whether it is a complete checkpoint cannot be told: {}", folder.string(), fault);
}

// A partial or replaced one.
void settle_one(Files& files, const fs::path& folder, const fs::path& checkpoint) {
  const bool superseded = files.exists(checkpoint);
  const CommitCheck check = superseded ? CommitCheck{} : check_commit(files, folder);
  if (superseded || check.commit == Commit::kNone) {
    or_warn([&] { discard(files, folder, checkpoint); });
  } else if (check.commit == Commit::kWhole) {
    rename_synced(files, folder, checkpoint);
  } else {
    warn_unknown(folder, check.fault);
  }
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, std::int64_t step) {
  return output_dir / fmt::format("{}{}", kName, step);
}

std::optional<fs::path> committed_folder(Files& files, const fs::path& checkpoint) {
  if (!checkpoint.has_filename() && checkpoint.has_relative_path()) {  // "checkpoint-7/"
    return committed_folder(files, checkpoint.parent_path());
  }
  if (committed(files, checkpoint)) return checkpoint;
  // Only between the two renames of promote() is there none: then the new one is whole, and so is the old one.
  if (files.exists(checkpoint)) return std::nullopt;
  for (const std::string_view suffix : {kPartial, kReplaced}) {
    if (fs::path folder = hidden(checkpoint, suffix); committed(files, folder)) return folder;
  }
  return std::nullopt;
}

std::vector<std::int64_t> committed_steps(Files& files, const fs::path& output_dir) {
  std::set<std::int64_t> steps;
  if (!files.exists(output_dir)) return {};
  for (const std::string& name : files.list(output_dir)) {
    std::optional<std::int64_t> step = step_of(name);
    if (!step) step = hidden_step(name, kPartial);
    if (!step) step = hidden_step(name, kReplaced);
    if (step && !steps.contains(*step) && committed_folder(files, checkpoint_path(output_dir, *step))) {
      steps.insert(*step);
    }
  }
  return {steps.begin(), steps.end()};
}

std::vector<std::int64_t> named_steps(Files& files, const fs::path& output_dir) {
  std::set<std::int64_t> steps;
  if (!files.exists(output_dir)) return {};
  for (const std::string& name : files.list(output_dir)) {
    if (const std::optional<std::int64_t> step = step_of(name)) steps.insert(*step);
  }
  return {steps.begin(), steps.end()};
}

void settle(Files& files, const fs::path& output_dir) {
  bool changed = false;
  // Names are sorted, so a whole partial takes the place before the one that it replaces is looked at.
  for (const std::string& name : files.list(output_dir)) {
    const fs::path folder = output_dir / name;
    std::optional<std::int64_t> step = hidden_step(name, kPartial);
    if (!step) step = hidden_step(name, kReplaced);
    if (step) settle_one(files, folder, checkpoint_path(output_dir, *step));
    const bool removed = is_removed(name);
    if (removed) or_warn([&] { files.remove_all(folder); });
    changed |= step || removed;
  }
  if (changed) files.sync_directory(output_dir);
}

fs::path make_partial(Files& files, const fs::path& output_dir, std::int64_t step) {
  const fs::path checkpoint = checkpoint_path(output_dir, step);
  fs::path partial = hidden(checkpoint, kPartial);
  if (files.exists(partial)) make_way(files, partial, checkpoint);  // settle() had to leave it
  files.make_directories(partial);
  return partial;
}

void drop_partial(Files& files, const fs::path& output_dir, std::int64_t step) {
  const fs::path partial = hidden(checkpoint_path(output_dir, step), kPartial);
  if (!files.exists(partial)) return;
  const CommitCheck check = check_commit(files, partial);
  if (check.commit == Commit::kNone) or_warn([&] { files.remove_all(partial); });
  if (check.commit == Commit::kUnknown) warn_unknown(partial, check.fault);
}

void promote(Files& files, const fs::path& output_dir, std::int64_t step) {
  const fs::path checkpoint = checkpoint_path(output_dir, step);
  const fs::path replaced = hidden(checkpoint, kReplaced);
  bool old = false;
  if (files.exists(checkpoint)) {
    old = committed(files, checkpoint);
    if (old) {
      rename_synced(files, checkpoint, replaced);
    } else {
      make_way(files, checkpoint, checkpoint);
    }
  }
  rename_synced(files, hidden(checkpoint, kPartial), checkpoint);
  if (old) or_warn([&] { discard(files, replaced, checkpoint); });
}

fs::path set_aside(Files& files, const fs::path& output_dir, std::int64_t step) {
  const fs::path checkpoint = checkpoint_path(output_dir, step);
  return keep(files, checkpoint, checkpoint);
}

void remove_checkpoint(Files& files, const fs::path& output_dir, std::int64_t step) {
  const fs::path checkpoint = checkpoint_path(output_dir, step);
  discard(files, checkpoint, checkpoint);
}

}  // namespace protrain
