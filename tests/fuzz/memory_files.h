// Files that live in memory, for fuzz targets: the reader under test opens the fuzzer's bytes. Reading outside a file
// ends the process, as it would with a mapping: a reader must have checked every bound before. Not thread-safe.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace protrain {

class MemoryFiles : public Files {
 public:
  void put(const std::filesystem::path& path, std::vector<std::byte> bytes) {
    files_[path] = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  }

  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    put(path, {});
    return std::make_unique<Writable>(files_[path]);
  }
  std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) override {
    const auto found = files_.find(path);
    if (found == files_.end()) fail(ExitCode::kFiles, "cannot open {}: no such file", path.string());
    return std::make_unique<Readable>(found->second);
  }
  bool exists(const std::filesystem::path& path) override {
    const auto inside = files_.lower_bound(path / "");
    return files_.contains(path) || directories_.contains(path) ||
           (inside != files_.end() && inside->first.parent_path() == path);
  }
  void make_directories(const std::filesystem::path& path) override { directories_.insert(path); }
  std::vector<std::string> list(const std::filesystem::path& path) override {
    std::vector<std::string> names;
    for (const auto& [file, bytes] : files_) {
      if (file.parent_path() == path) names.push_back(file.filename().string());
    }
    return names;
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    auto node = files_.extract(from);
    if (node.empty()) fail(ExitCode::kFiles, "cannot rename {}: no such file", from.string());
    files_.erase(to);
    node.key() = to;
    files_.insert(std::move(node));
  }
  void remove_all(const std::filesystem::path& path) override {
    std::erase_if(files_, [&](const auto& entry) { return entry.first == path || entry.first.parent_path() == path; });
    directories_.erase(path);
  }
  void sync_directory(const std::filesystem::path&) override {}

 private:
  using Content = std::shared_ptr<std::vector<std::byte>>;

  class Readable : public ReadableFile {
   public:
    explicit Readable(Content content) : content_(std::move(content)) {}
    Bytes size() const override { return static_cast<Bytes>(content_->size()); }
    void read_at(Bytes offset, std::span<std::byte> to) const override {
      if (offset < 0 || offset > size() || static_cast<Bytes>(to.size()) > size() - offset) {
        std::fprintf(stderr, "read outside the file: [%lld, +%zu) of %lld\n", static_cast<long long>(offset), to.size(),
                     static_cast<long long>(size()));
        std::abort();
      }
      if (!to.empty()) std::memcpy(to.data(), content_->data() + offset, to.size());
    }

   private:
    Content content_;
  };

  class Writable : public WritableFile {
   public:
    explicit Writable(Content content) : content_(std::move(content)) {}
    void write(std::span<const std::byte> bytes) override {
      content_->insert(content_->end(), bytes.begin(), bytes.end());
    }
    void write_at(Bytes offset, std::span<const std::byte> bytes) override {
      const std::size_t end = static_cast<std::size_t>(offset) + bytes.size();
      if (content_->size() < end) content_->resize(end);
      if (!bytes.empty()) std::memcpy(content_->data() + offset, bytes.data(), bytes.size());
    }
    void sync() override {}
    void close() override {}

   private:
    Content content_;
  };

  std::map<std::filesystem::path, Content> files_;
  std::set<std::filesystem::path> directories_;
};

}  // namespace protrain
