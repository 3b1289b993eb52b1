#include "checkpoint/digest_files.h"

#define XXH_INLINE_ALL
#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kPieceBytes = 8 * kMiB;

class Hasher {
 public:
  Hasher() { XXH3_128bits_reset(&state_); }
  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(&state_, bytes.data(), bytes.size());
    bytes_ += static_cast<Bytes>(bytes.size());
  }
  Bytes bytes() const { return bytes_; }
  FileDigest digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return {.bytes = bytes_, .high = hash.high64, .low = hash.low64};
  }

 private:
  XXH3_state_t state_;  // brings its own alignment
  Bytes bytes_ = 0;
};

// The name of a file that lies in `folder` itself.
std::optional<std::string> name_in(const fs::path& folder, const fs::path& path) {
  if (path.parent_path().lexically_normal() != folder) return std::nullopt;
  return path.filename().string();
}

}  // namespace

struct DigestingFiles::State {
  fs::path folder;
  std::mutex mutex;
  std::map<std::string, FileDigest> digests;
};

class DigestingFiles::File : public WritableFile {
 public:
  File(std::shared_ptr<State> state, std::string name, std::unique_ptr<WritableFile> inner)
      : state_(std::move(state)), name_(std::move(name)), inner_(std::move(inner)) {}

  void write(std::span<const std::byte> bytes) override {
    hasher_.add(bytes);
    inner_->write(bytes);
  }
  void write_at(Bytes offset, std::span<const std::byte> bytes) override {
    PROTRAIN_CHECK(offset == hasher_.bytes(), "{}: a write at {}, {} bytes came before", name_, offset,
                   hasher_.bytes());
    hasher_.add(bytes);
    inner_->write_at(offset, bytes);
  }
  void sync() override { inner_->sync(); }
  void close() override {
    inner_->close();
    const std::lock_guard lock(state_->mutex);
    state_->digests[name_] = hasher_.digest();
  }

 private:
  std::shared_ptr<State> state_;
  std::string name_;
  std::unique_ptr<WritableFile> inner_;
  Hasher hasher_;
};

DigestingFiles::DigestingFiles(Files& inner, const fs::path& folder)
    : ForwardingFiles(inner), state_(std::make_shared<State>()) {
  state_->folder = folder.lexically_normal();
}
DigestingFiles::~DigestingFiles() = default;

std::unique_ptr<WritableFile> DigestingFiles::create(const fs::path& path) {
  std::unique_ptr<WritableFile> file = inner_.create(path);
  const std::optional<std::string> name = name_in(state_->folder, path);
  if (!name) return file;
  return std::make_unique<File>(state_, *name, std::move(file));
}

void DigestingFiles::rename(const fs::path& from, const fs::path& to) {
  inner_.rename(from, to);
  const std::optional<std::string> old_name = name_in(state_->folder, from), new_name = name_in(state_->folder, to);
  const std::lock_guard lock(state_->mutex);
  if (new_name) state_->digests.erase(*new_name);
  if (!old_name) return;
  auto moved = state_->digests.extract(*old_name);
  if (moved.empty() || !new_name) return;
  moved.key() = *new_name;
  state_->digests.insert(std::move(moved));
}

void DigestingFiles::remove_all(const fs::path& path) {
  inner_.remove_all(path);
  const std::lock_guard lock(state_->mutex);
  if (const auto name = name_in(state_->folder, path)) state_->digests.erase(*name);
}

std::map<std::string, FileDigest> DigestingFiles::digests() const {
  const std::lock_guard lock(state_->mutex);
  return state_->digests;
}

struct VerifyingFiles::State {
  struct Progress {
    FileDigest expected;
    bool opened = false;
    std::mutex mutex;  // guards hasher
    Hasher hasher;
  };
  fs::path folder;
  std::map<std::string, std::unique_ptr<Progress>> files;  // the map itself does not change
};

class VerifyingFiles::File : public ReadableFile {
 public:
  File(std::shared_ptr<State> state, State::Progress& progress, std::unique_ptr<ReadableFile> inner)
      : state_(std::move(state)), progress_(progress), inner_(std::move(inner)) {}

  Bytes size() const override { return inner_->size(); }
  void read_at(Bytes offset, std::span<std::byte> to) const override {
    inner_->read_at(offset, to);
    const std::lock_guard lock(progress_.mutex);
    const Bytes seen = progress_.hasher.bytes();
    if (offset > seen || offset + static_cast<Bytes>(to.size()) <= seen) return;
    progress_.hasher.add(to.subspan(static_cast<std::size_t>(seen - offset)));
  }

 private:
  const std::shared_ptr<State> state_;  // keeps the progress alive
  State::Progress& progress_;
  std::unique_ptr<ReadableFile> inner_;
};

VerifyingFiles::VerifyingFiles(Files& inner, const fs::path& folder, const std::map<std::string, FileDigest>& expected)
    : ForwardingFiles(inner), state_(std::make_shared<State>()) {
  state_->folder = folder.lexically_normal();
  for (const auto& [name, digest] : expected) {
    auto progress = std::make_unique<State::Progress>();
    progress->expected = digest;
    state_->files.emplace(name, std::move(progress));
  }
}
VerifyingFiles::~VerifyingFiles() = default;

std::unique_ptr<ReadableFile> VerifyingFiles::open(const fs::path& path) {
  std::unique_ptr<ReadableFile> file = inner_.open(path);
  const std::optional<std::string> name = name_in(state_->folder, path);
  const auto found = name ? state_->files.find(*name) : state_->files.end();
  if (found == state_->files.end()) return file;
  found->second->opened = true;
  return std::make_unique<File>(state_, *found->second, std::move(file));
}

namespace {

// Hashes what is left of the file. Empty, or what is wrong with it in one line.
std::string finish(Files& files, const fs::path& path, const FileDigest& expected, Hasher& hasher) try {
  const std::unique_ptr<ReadableFile> file = files.open(path);
  if (file->size() != expected.bytes) {
    return fmt::format("{} has {} bytes, {} were saved", path.string(), file->size(), expected.bytes);
  }
  std::vector<std::byte> piece;
  while (hasher.bytes() < expected.bytes) {
    piece.resize(static_cast<std::size_t>(std::min(kPieceBytes, expected.bytes - hasher.bytes())));
    file->read_at(hasher.bytes(), piece);
    hasher.add(piece);
  }
  if (hasher.digest() == expected) return {};
  return fmt::format("{} is damaged: its bytes are not those that were saved", path.string());
} catch (const Error& error) {
  return error.what();
}

}  // namespace

std::string VerifyingFiles::fault() const {
  for (const auto& [name, progress] : state_->files) {
    const std::lock_guard lock(progress->mutex);
    if (std::string text = finish(inner_, state_->folder / name, progress->expected, progress->hasher); !text.empty()) {
      return text;
    }
  }
  return {};
}

std::string VerifyingFiles::fault_of_opened() const {
  for (const auto& [name, progress] : state_->files) {
    if (!progress->opened) continue;
    const std::lock_guard lock(progress->mutex);
    if (std::string text = finish(inner_, state_->folder / name, progress->expected, progress->hasher); !text.empty()) {
      return text;
    }
  }
  return {};
}

}  // namespace protrain
