// What a crash of the machine may take back: file data and directory entries that were not synced yet. A model of the
// weakest file system that POSIX allows, except that operations on entries are undone in reverse order. Used by
// FaultyFiles, which calls it after each operation. Not thread-safe. Touches real files only in drop() and Tree.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace protrain {

// A copy, in memory, of a file or a folder with all that is in it.
class Tree {
 public:
  static Tree read(const std::filesystem::path&);  // of nothing, when nothing is there
  void restore(const std::filesystem::path&) const;

 private:
  std::map<std::filesystem::path, std::optional<std::string>> entries_;  // by relative path; no text: a directory
};

class Unsynced {
 public:
  using FileId = std::int64_t;  // -1: not tracked

  FileId created(const std::filesystem::path&, bool is_new);
  void wrote(FileId, Bytes offset, Bytes bytes);
  void synced(FileId);
  void made_directory(const std::filesystem::path&);
  void renamed(const std::filesystem::path& from, const std::filesystem::path& to, Tree replaced);
  void removed(const std::filesystem::path&, Tree);
  void synced_directory(const std::filesystem::path&);

  // Undoes all that a crash may undo. Lost data is cut off the file's end, or (zeros) reads as zeros.
  void drop(bool zeros);

 private:
  struct Data {
    std::filesystem::path path;  // where the file is now
    Bytes first_lost = -1;       // smallest offset written since the last sync; -1: nothing
    Bytes synced_bytes = 0;
    Bytes bytes = 0;
  };
  struct Entry {
    enum class Kind { kAdded, kRenamed, kRemoved } kind;
    std::filesystem::path path;  // the new name, or the removed one
    std::filesystem::path from;  // kRenamed
    Tree lost;                   // what the rename replaced or the removal took
  };

  void moved(const std::filesystem::path& from, const std::filesystem::path& to);

  std::map<FileId, Data> files_;
  FileId next_ = 0;
  std::vector<Entry> entries_;  // not yet safe, oldest first
};

}  // namespace protrain
