#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/error.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_path(const char* what, const fs::path& path, int error) {
  fail(ExitCode::kFiles, "cannot {} {}: {}", what, path.string(), std::generic_category().message(error));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

int open_retrying(const fs::path& path, int flags) {
  for (;;) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EINTR) return fd;
  }
}

// Linux moves at most 2 GiB less a page in one call; pieces keep the loop's arithmetic plain.
constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;

class PosixWritableFile : public WritableFile {
 public:
  explicit PosixWritableFile(const fs::path& path)
      : path_(path), descriptor_(open_retrying(path, O_WRONLY | O_CREAT | O_TRUNC)) {
    if (descriptor_.get() < 0) fail_path("create", path, errno);
  }

  void write(std::span<const std::byte> bytes) override { write_at(end_, bytes); }

  void write_at(Bytes offset, std::span<const std::byte> bytes) override {
    PROTRAIN_CHECK(descriptor_.get() >= 0, "{} is closed", path_.string());
    while (!bytes.empty()) {
      const std::size_t piece = std::min(bytes.size(), kLargestTransfer);
      const ssize_t written = ::pwrite(descriptor_.get(), bytes.data(), piece, offset);
      if (written < 0) {
        if (errno == EINTR) continue;
        fail_path("write", path_, errno);
      }
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      offset += written;
    }
    end_ = std::max(end_, offset);
  }

  void sync() override {
    PROTRAIN_CHECK(descriptor_.get() >= 0, "{} is closed", path_.string());
    if (::fsync(descriptor_.get()) != 0) fail_path("sync", path_, errno);
  }

  void close() override {
    if (descriptor_.get() >= 0 && descriptor_.close() != 0 && errno != EINTR) fail_path("close", path_, errno);
  }

 private:
  fs::path path_;
  Descriptor descriptor_;
  Bytes end_ = 0;
};

class PosixReadableFile : public ReadableFile {
 public:
  // O_NONBLOCK: a FIFO is refused, not waited for.
  explicit PosixReadableFile(const fs::path& path)
      : path_(path), descriptor_(open_retrying(path, O_RDONLY | O_NONBLOCK)) {
    if (descriptor_.get() < 0) fail_path("open", path, errno);
    struct stat status{};
    if (::fstat(descriptor_.get(), &status) != 0) fail_path("open", path, errno);
    if (S_ISDIR(status.st_mode)) fail_path("open", path, EISDIR);
    if (!S_ISREG(status.st_mode)) fail(ExitCode::kFiles, "cannot open {}: not a regular file", path.string());
    size_ = status.st_size;
  }

  Bytes size() const override { return size_; }

  void read_at(Bytes offset, std::span<std::byte> to) const override {
    const auto wanted = static_cast<Bytes>(to.size());
    if (offset < 0 || offset > size_ || wanted > size_ - offset) {
      fail(ExitCode::kFiles, "cannot read {}: {} bytes from offset {} lie outside the file, which has {}",
           path_.string(), wanted, offset, size_);
    }
    while (!to.empty()) {
      const std::size_t piece = std::min(to.size(), kLargestTransfer);
      const ssize_t got = ::pread(descriptor_.get(), to.data(), piece, offset);
      if (got < 0) {
        if (errno == EINTR) continue;
        fail_path("read", path_, errno);
      }
      if (got == 0) fail(ExitCode::kFiles, "cannot read {}: it became shorter, to {} bytes", path_.string(), offset);
      to = to.subspan(static_cast<std::size_t>(got));
      offset += got;
    }
  }

 private:
  fs::path path_;
  Descriptor descriptor_;
  Bytes size_ = 0;
};

class PosixFiles : public Files {
 public:
  std::unique_ptr<WritableFile> create(const fs::path& path) override {
    return std::make_unique<PosixWritableFile>(path);
  }

  std::unique_ptr<ReadableFile> open(const fs::path& path) override {
    return std::make_unique<PosixReadableFile>(path);
  }

  bool exists(const fs::path& path) override {
    std::error_code error;
    return fs::exists(path, error);
  }

  void make_directories(const fs::path& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) fail_path("make directory", path, error.value());
  }

  std::vector<std::string> list(const fs::path& path) override {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) fail_path("list", path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  void rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      const int error = errno;
      fail(ExitCode::kFiles, "cannot rename {} to {}: {}", from.string(), to.string(),
           std::generic_category().message(error));
    }
  }

  void remove_all(const fs::path& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail_path("remove", path, error.value());
  }

  void sync_directory(const fs::path& path) override {
    const Descriptor directory(open_retrying(path.empty() ? fs::path(".") : path, O_RDONLY | O_DIRECTORY));
    if (directory.get() < 0 || ::fsync(directory.get()) != 0) fail_path("sync directory", path, errno);
  }
};

}  // namespace

std::string Files::read_text(const fs::path& path) {
  const auto file = open(path);
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void Files::write_text(const fs::path& path, std::string_view text, bool sync) {
  const auto file = create(path);
  file->write(std::as_bytes(std::span(text)));
  if (sync) file->sync();
  file->close();
}

std::string folder_fault(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return {};
  return status.type() == fs::file_type::none ? "cannot be looked at: " + error.message() : "is not a folder";
}

Files& real_files() {
  static PosixFiles* const files = new PosixFiles;
  return *files;
}

}  // namespace protrain
