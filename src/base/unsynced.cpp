#include "base/unsynced.h"

#include <algorithm>
#include <fstream>
#include <iterator>

namespace protrain {
namespace {

namespace fs = std::filesystem;

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// One spelling for one place, so that "a/b/", "./a/b" and "a//b" meet.
fs::path plain(const fs::path& path) {
  fs::path result = fs::absolute(path).lexically_normal();
  return result.has_filename() ? result : result.parent_path();
}

bool within(const fs::path& path, const fs::path& folder) {
  const auto [in_folder, in_path] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return in_folder == folder.end();
}

// Where `path` is after from was renamed to to.
fs::path follow(const fs::path& path, const fs::path& from, const fs::path& to) {
  if (!within(path, from)) return path;
  return path == from ? to : to / path.lexically_relative(from);
}

}  // namespace

Tree Tree::read(const fs::path& path) {
  Tree tree;
  if (!fs::exists(path)) return tree;
  if (!fs::is_directory(path)) {
    tree.entries_["."] = read_all(path);
    return tree;
  }
  tree.entries_["."] = std::nullopt;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    auto& text = tree.entries_[entry.path().lexically_relative(path)];
    if (entry.is_regular_file()) text = read_all(entry.path());
  }
  return tree;
}

void Tree::restore(const fs::path& path) const {
  if (entries_.empty()) return;
  for (const auto& [relative, text] : entries_) {  // a folder sorts before what is in it
    const fs::path place = relative == "." ? path : path / relative;
    if (text) {
      std::ofstream(place, std::ios::binary) << *text;
    } else {
      fs::create_directories(place);
    }
  }
}

Unsynced::FileId Unsynced::created(const fs::path& path, bool is_new) {
  const fs::path place = plain(path);
  // Another file of that name was cut to nothing: it is no longer there to lose anything.
  std::erase_if(files_, [&](const auto& item) { return item.second.path == place; });
  files_[next_] = Data{.path = place};
  if (is_new) entries_.push_back({Entry::Kind::kAdded, place, {}, {}});
  return next_++;
}

void Unsynced::wrote(FileId id, Bytes offset, Bytes bytes) {
  const auto found = files_.find(id);
  if (found == files_.end() || bytes == 0) return;
  Data& data = found->second;
  data.first_lost = data.first_lost < 0 ? offset : std::min(data.first_lost, offset);
  data.bytes = std::max(data.bytes, offset + bytes);
}

void Unsynced::synced(FileId id) {
  const auto found = files_.find(id);
  if (found == files_.end()) return;
  found->second.first_lost = -1;
  found->second.synced_bytes = found->second.bytes;
}

void Unsynced::made_directory(const fs::path& path) { entries_.push_back({Entry::Kind::kAdded, plain(path), {}, {}}); }

void Unsynced::moved(const fs::path& from, const fs::path& to) {
  for (auto& [id, data] : files_) data.path = follow(data.path, from, to);
}

void Unsynced::renamed(const fs::path& from, const fs::path& to, Tree replaced) {
  const fs::path source = plain(from);
  const fs::path target = plain(to);
  std::erase_if(files_, [&](const auto& item) { return within(item.second.path, target); });
  moved(source, target);
  entries_.push_back({Entry::Kind::kRenamed, target, source, std::move(replaced)});
}

void Unsynced::removed(const fs::path& path, Tree tree) {
  const fs::path place = plain(path);
  std::erase_if(files_, [&](const auto& item) { return within(item.second.path, place); });
  entries_.push_back({Entry::Kind::kRemoved, place, {}, std::move(tree)});
}

void Unsynced::synced_directory(const fs::path& path) {
  const fs::path folder = plain(path);
  // An entry keeps the name of its own time; renames that came later say where it is now.
  const auto safe = [&](std::size_t i) {
    fs::path now = entries_[i].path;
    for (std::size_t j = i + 1; j < entries_.size(); ++j) {
      if (entries_[j].kind == Entry::Kind::kRenamed) now = follow(now, entries_[j].from, entries_[j].path);
    }
    return now.parent_path() == folder;
  };
  std::vector<bool> is_safe;
  is_safe.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) is_safe.push_back(safe(i));
  std::vector<Entry> kept;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!is_safe[i]) {
      kept.push_back(std::move(entries_[i]));
    } else if (entries_[i].kind == Entry::Kind::kRenamed) {
      // It will not be undone: what is older and still may be has the new name from now on.
      for (Entry& older : kept) {
        older.path = follow(older.path, entries_[i].from, entries_[i].path);
        older.from = follow(older.from, entries_[i].from, entries_[i].path);
      }
    }
  }
  entries_ = std::move(kept);
}

void Unsynced::drop(bool zeros) {
  for (const auto& [id, data] : files_) {
    std::error_code gone;
    if (data.first_lost < 0 || !fs::is_regular_file(data.path, gone)) continue;
    const auto bytes = static_cast<Bytes>(fs::file_size(data.path));
    // Bytes that were overwritten since the sync cannot be cut off: they become zeros in both ways.
    const Bytes from = std::min(data.first_lost, bytes);
    fs::resize_file(data.path, static_cast<std::uintmax_t>(from));
    const Bytes keep = zeros ? bytes : std::max(from, std::min(bytes, data.synced_bytes));
    fs::resize_file(data.path, static_cast<std::uintmax_t>(keep));
  }
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    std::error_code ignored;  // what is below a folder that went is gone already
    switch (entry->kind) {
      case Entry::Kind::kAdded: fs::remove_all(entry->path, ignored); break;
      case Entry::Kind::kRenamed:
        fs::rename(entry->path, entry->from, ignored);
        entry->lost.restore(entry->path);
        break;
      case Entry::Kind::kRemoved: entry->lost.restore(entry->path); break;
    }
  }
  files_.clear();
  entries_.clear();
}

}  // namespace protrain
