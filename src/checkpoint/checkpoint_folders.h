// The checkpoint folders of an output directory, and how one takes its place without ever being the only, half-made
// one.
//
// Note [Checkpoint folders]: a save is made in ".checkpoint-<step>.partial" and renamed to "checkpoint-<step>" when its
// commit mark is on the disk. An older folder of that name first becomes ".checkpoint-<step>.replaced"; one that is to
// go becomes ".checkpoint-<step>.removed" before its files go. So at every moment each committed state has a name under
// which it is whole, and folders that are going do not count. settle() makes good what a death left behind. What cannot
// be removed costs only space: a warning, and the next settle() tries again, while ".removed-<n>" is the name of more.
// A folder that is neither to count nor to go, or that cannot be read, is kept as "checkpoint-<step>.set-aside-<n>".
// Not thread-safe.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/files.h"

namespace protrain {

std::filesystem::path checkpoint_path(const std::filesystem::path& output_dir, std::int64_t step);

// The committed folder that stands for `checkpoint`: itself, or what a death while it was being replaced left of it.
std::optional<std::filesystem::path> committed_folder(Files&, const std::filesystem::path& checkpoint);

// Steps with a committed folder, ascending.
std::vector<std::int64_t> committed_steps(Files&, const std::filesystem::path& output_dir);
// Steps with a folder "checkpoint-<step>", committed or not, ascending.
std::vector<std::int64_t> named_steps(Files&, const std::filesystem::path& output_dir);

void settle(Files&, const std::filesystem::path& output_dir);  // before a save
std::filesystem::path make_partial(Files&, const std::filesystem::path& output_dir, std::int64_t step);  // empty
// Gives the room back after a failure; a committed one stays.
void drop_partial(Files&, const std::filesystem::path& output_dir, std::int64_t step);
void promote(Files&, const std::filesystem::path& output_dir, std::int64_t step);  // committed partial -> its name
// Keeps checkpoint-<step> under a name that does not count, which is returned. Sync output_dir after it.
std::filesystem::path set_aside(Files&, const std::filesystem::path& output_dir, std::int64_t step);
void remove_checkpoint(Files&, const std::filesystem::path& output_dir, std::int64_t step);

}  // namespace protrain
