// Files that take a digest of what passes through them, so that a checkpoint knows the content of its files without
// reading them twice.
//
// The inner Files outlives these and every file they gave out. Thread-safe as Files is.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/files.h"

namespace protrain {

// XXH3-128 of a whole file.
struct FileDigest {
  Bytes bytes = 0;
  std::uint64_t high = 0, low = 0;
  bool operator==(const FileDigest&) const = default;
};

// Passes everything on.
class ForwardingFiles : public Files {
 public:
  explicit ForwardingFiles(Files& inner) : inner_(inner) {}
  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override { return inner_.create(path); }
  std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) override { return inner_.open(path); }
  bool exists(const std::filesystem::path& path) override { return inner_.exists(path); }
  void make_directories(const std::filesystem::path& path) override { inner_.make_directories(path); }
  std::vector<std::string> list(const std::filesystem::path& path) override { return inner_.list(path); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override { inner_.rename(from, to); }
  void remove_all(const std::filesystem::path& path) override { inner_.remove_all(path); }
  void sync_directory(const std::filesystem::path& path) override { inner_.sync_directory(path); }

 protected:
  Files& inner_;
};

// Knows the digest of each file of `folder` that was written through it from front to back, and closed.
class DigestingFiles : public ForwardingFiles {
 public:
  DigestingFiles(Files& inner, const std::filesystem::path& folder);
  ~DigestingFiles() override;
  std::unique_ptr<WritableFile> create(const std::filesystem::path&) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove_all(const std::filesystem::path&) override;
  std::map<std::string, FileDigest> digests() const;  // by name in the folder

 private:
  struct State;
  class File;
  std::shared_ptr<State> state_;
};

// Compares the files of `folder` with their digests while they are read. Bytes that come in order are hashed as they
// come; what was read in another order, or not at all, is read once more when a fault is asked for.
class VerifyingFiles : public ForwardingFiles {
 public:
  VerifyingFiles(Files& inner, const std::filesystem::path& folder, const std::map<std::string, FileDigest>& expected);
  ~VerifyingFiles() override;
  std::unique_ptr<ReadableFile> open(const std::filesystem::path&) override;
  // The first file, of all or of those opened through this, that is not what it was; empty when there is none.
  std::string fault() const;
  std::string fault_of_opened() const;

 private:
  struct State;
  class File;
  std::shared_ptr<State> state_;
};

}  // namespace protrain
