#include "checkpoint/checkpoint_folders.h"

#include <fmt/core.h>

#include <charconv>
#include <set>

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

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kName)) return std::nullopt;
  name.remove_prefix(kName.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || name.empty() || step < 0) return std::nullopt;
  if (name.size() > 1 && name.front() == '0') return std::nullopt;  // not how a step is written
  return step;
}

// The step of ".checkpoint-<step><suffix>".
std::optional<std::int64_t> hidden_step(std::string_view name, std::string_view suffix) {
  if (!name.starts_with('.') || !name.ends_with(suffix) || name.size() < suffix.size() + 1) return std::nullopt;
  return step_of(name.substr(1, name.size() - suffix.size() - 1));
}

bool committed(Files& files, const fs::path& folder) {
  return files.exists(folder) && commit_fault(files, folder).empty();
}

void rename_synced(Files& files, const fs::path& from, const fs::path& to) {
  files.rename(from, to);
  files.sync_directory(to.parent_path());
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, std::int64_t step) {
  return output_dir / fmt::format("{}{}", kName, step);
}

fs::path partial_path(const fs::path& output_dir, std::int64_t step) {
  return hidden(checkpoint_path(output_dir, step), kPartial);
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
  for (const std::string& name : files.list(output_dir)) {
    const fs::path folder = output_dir / name;
    for (const std::string_view suffix : {kPartial, kReplaced, kRemoved}) {
      const std::optional<std::int64_t> step = hidden_step(name, suffix);
      if (!step) continue;
      const fs::path checkpoint = checkpoint_path(output_dir, *step);
      // Names are sorted, so a whole partial takes the place before the one that it replaces is looked at.
      if (suffix != kRemoved && !files.exists(checkpoint) && committed(files, folder)) {
        rename_synced(files, folder, checkpoint);
      } else {
        files.remove_all(folder);
        changed = true;
      }
    }
  }
  if (changed) files.sync_directory(output_dir);
}

void promote(Files& files, const fs::path& output_dir, std::int64_t step) {
  const fs::path checkpoint = checkpoint_path(output_dir, step);
  const fs::path replaced = hidden(checkpoint, kReplaced);
  bool old = false;
  if (files.exists(checkpoint)) {
    old = committed(files, checkpoint);
    if (old) {
      rename_synced(files, checkpoint, replaced);
    } else {  // another program's, or damaged
      const fs::path kept = set_aside(files, output_dir, step);
      files.sync_directory(output_dir);
      log::warning("{}: no complete checkpoint; it is kept as {}", checkpoint.string(), kept.string());
    }
  }
  rename_synced(files, hidden(checkpoint, kPartial), checkpoint);
  if (old) files.remove_all(replaced);
}

fs::path set_aside(Files& files, const fs::path& output_dir, std::int64_t step) {
  const fs::path checkpoint = checkpoint_path(output_dir, step);
  for (int i = 1;; ++i) {
    fs::path to = checkpoint.string() + fmt::format(".set-aside-{}", i);
    if (files.exists(to)) continue;
    files.rename(checkpoint, to);
    return to;
  }
}

void remove_checkpoint(Files& files, const fs::path& output_dir, std::int64_t step) {
  const fs::path checkpoint = checkpoint_path(output_dir, step);
  const fs::path removed = hidden(checkpoint, kRemoved);
  rename_synced(files, checkpoint, removed);
  files.remove_all(removed);
}

}  // namespace protrain
