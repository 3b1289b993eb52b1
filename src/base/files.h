// Every file operation of a save and of the readers goes through Files, so that tests can make the process die, run out
// of space or lose unsynced data at any one of them. Implementations are thread-safe; a WritableFile has one owner.
// Errors: Error(kFiles) naming the path and the system's reason, unless said otherwise.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"

namespace protrain {

class WritableFile {
 public:
  virtual ~WritableFile() = default;                   // closes without sync, never throws
  virtual void write(std::span<const std::byte>) = 0;  // appends all of it
  virtual void write_at(Bytes offset, std::span<const std::byte>) = 0;
  virtual void sync() = 0;   // data and size reach the disk
  virtual void close() = 0;  // reports late errors; the destructor does not
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual Bytes size() const = 0;
  virtual void read_at(Bytes offset,
                       std::span<std::byte>) const = 0;  // all of it or Error; thread-safe; leaves no mapping
};

class Files {
 public:
  virtual ~Files() = default;
  virtual std::unique_ptr<WritableFile> create(const std::filesystem::path&) = 0;  // truncates
  virtual std::unique_ptr<ReadableFile> open(const std::filesystem::path&) = 0;    // a regular file, else Error
  virtual bool exists(const std::filesystem::path&) = 0;
  virtual void make_directories(const std::filesystem::path&) = 0;
  virtual std::vector<std::string> list(const std::filesystem::path&) = 0;  // names, sorted
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void remove_all(const std::filesystem::path&) = 0;
  virtual void sync_directory(const std::filesystem::path&) = 0;

  std::string read_text(const std::filesystem::path&);
  void write_text(const std::filesystem::path&, std::string_view, bool sync);
};

Files& real_files();  // POSIX; lives for the process

// Empty where `path` is a folder; else what to say after its name. Never an error of the system's: names that are too
// long, links in a loop and folders that may not be entered are such faults too.
std::string folder_fault(const std::filesystem::path&);

}  // namespace protrain
