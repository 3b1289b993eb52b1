// Files whose n-th operation goes wrong: for tests, and for the program under the environment variable
// PROTRAIN_FILE_FAULT.
//
// Operations that change something are counted from 1, in order: create, write, write_at, sync, close, rename,
// remove_all, make_directories, sync_directory. Thread-safe as Files is. The inner Files outlives this one.
#pragma once
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace protrain {

enum class FileFaultKind : std::uint8_t {
  kNone,     // counts only
  kDie,      // the process ends at operation `at`: a write is half done, a remove_all too, the others are not begun
  kNoSpace,  // operation `at` throws Error(kFiles) as a full disk does, and so does each later create, write, sync and
             // mkdir
  kSleep,    // sleeps before operation `at` (0: before each)
};

struct FileFault {
  FileFaultKind kind = FileFaultKind::kNone;
  std::int64_t at = 0;
  double sleep_seconds = 0;
  // Death of the machine, not of the process alone: file data written since the file's last sync is lost (cut off if
  // `seed` is even, zeros if odd) and creations, renames, removals and new directories are undone unless sync_directory
  // of the directory that holds the (new) name followed. Keeps removed and replaced files in memory: for small trees.
  bool drop_unsynced = false;
  std::uint64_t seed = 0;    // also picks which half of a tree a dying remove_all removes
  bool throw_death = false;  // die by throwing FileDeath, here and at every later operation, instead of _exit(137)
};

// "die@17", "die@17,drop_unsynced,seed=3", "no_space@4", "sleep=0.05", "sleep=2@9". Error(kConfig) naming the text.
FileFault parse_file_fault(std::string_view);

// Not an Error, so that no handler of the library mistakes it for one.
class FileDeath : public std::exception {
 public:
  const char* what() const noexcept override { return "the process died at a file operation"; }
};

class FaultyFiles : public Files {
 public:
  FaultyFiles(Files& inner, const FileFault&);
  ~FaultyFiles() override;

  std::int64_t operations() const;           // counted so far
  std::vector<std::string> history() const;  // one line each: "rename a/x -> a/y"

  std::unique_ptr<WritableFile> create(const std::filesystem::path&) override;
  std::unique_ptr<ReadableFile> open(const std::filesystem::path&) override;
  bool exists(const std::filesystem::path&) override;
  void make_directories(const std::filesystem::path&) override;
  std::vector<std::string> list(const std::filesystem::path&) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove_all(const std::filesystem::path&) override;
  void sync_directory(const std::filesystem::path&) override;

 private:
  struct State;
  class File;
  std::shared_ptr<State> state_;
};

// real_files(), or FaultyFiles over it when PROTRAIN_FILE_FAULT is set (read once). Lives for the process.
Files& environment_files();

}  // namespace protrain
