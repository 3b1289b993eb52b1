#include "base/faulty_files.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/unsynced.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() && value >= 0;
}

constexpr int kKilledExit = 137;  // what a shell shows for a process ended by SIGKILL

}  // namespace

FileFault parse_file_fault(std::string_view text) {
  const auto refuse = [&] {
    fail(ExitCode::kConfig,
         "file fault \"{}\": write die@N[,drop_unsynced][,seed=N], no_space@N, sleep=SECONDS or sleep=SECONDS@N", text);
  };
  FileFault fault;
  if (text.ends_with(',')) refuse();
  bool first = true;
  for (std::string_view rest = text; first || !rest.empty(); first = false) {
    const auto comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    if (!first) {
      if (part == "drop_unsynced" && fault.kind == FileFaultKind::kDie) {
        fault.drop_unsynced = true;
      } else if (!part.starts_with("seed=") || !parse_number(part.substr(5), fault.seed)) {
        refuse();
      }
      continue;
    }
    const auto at = part.find('@');
    if (at != std::string_view::npos) {
      if (!parse_number(part.substr(at + 1), fault.at) || fault.at == 0) refuse();
      part = part.substr(0, at);
    }
    if (part == "die") {
      fault.kind = FileFaultKind::kDie;
    } else if (part == "no_space") {
      fault.kind = FileFaultKind::kNoSpace;
    } else if (part.starts_with("sleep=") && parse_number(part.substr(6), fault.sleep_seconds)) {
      fault.kind = FileFaultKind::kSleep;
    } else {
      refuse();
    }
    if (fault.kind != FileFaultKind::kSleep && fault.at == 0) refuse();
  }
  return fault;
}

struct FaultyFiles::State {
  State(Files& files, const FileFault& with) : inner(files), fault(with) {}

  Files& inner;
  const FileFault fault;

  std::mutex mutex;  // guards everything below, and makes each operation one step
  std::vector<std::string> history;
  bool dead = false;
  Unsynced unsynced;

  void check_alive() const {
    if (dead) throw FileDeath();
  }

  // Counts an operation and lets its fault happen. `torn` is what a dying operation has done already.
  template <typename Torn>
  void begin(const std::string& what, const fs::path& path, bool needs_space, const Torn& torn) {
    check_alive();
    history.push_back(what);
    const auto number = static_cast<std::int64_t>(history.size());
    switch (fault.kind) {
      case FileFaultKind::kNone: return;
      case FileFaultKind::kSleep:
        if (fault.at == 0 || fault.at == number) {
          std::this_thread::sleep_for(std::chrono::duration<double>(fault.sleep_seconds));
        }
        return;
      case FileFaultKind::kNoSpace:
        if (number == fault.at || (number > fault.at && needs_space)) {
          fail(ExitCode::kFiles, "cannot write {}: No space left on device", path.string());
        }
        return;
      case FileFaultKind::kDie:
        if (number == fault.at) {
          torn();
          die();
        }
        return;
    }
  }
  void begin(const std::string& what, const fs::path& path, bool needs_space) {
    begin(what, path, needs_space, [] {});
  }

  [[noreturn]] void die() {
    if (fault.drop_unsynced) unsynced.drop(fault.seed % 2 == 1);
    if (!fault.throw_death) ::_exit(kKilledExit);
    dead = true;
    throw FileDeath();
  }

  // Half of the files of a tree, as a removal that was cut short leaves it.
  void remove_half(const fs::path& path) {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->is_regular_file()) files.push_back(entry->path());
    }
    std::sort(files.begin(), files.end());
    std::mt19937_64 random(fault.seed);
    for (std::size_t i = files.size(); i > 1; --i) std::swap(files[i - 1], files[random() % i]);
    files.resize(files.size() - files.size() / 2);
    for (const fs::path& file : files) inner.remove_all(file);
  }
};

class FaultyFiles::File : public WritableFile {
 public:
  File(std::shared_ptr<State> state, fs::path path, std::unique_ptr<WritableFile> inner, Unsynced::FileId id)
      : state_(std::move(state)), path_(std::move(path)), inner_(std::move(inner)), id_(id) {}

  void write(std::span<const std::byte> bytes) override {
    const std::lock_guard lock(state_->mutex);
    state_->begin("write " + path_.string(), path_, true, [&] {
      const auto half = bytes.first(bytes.size() / 2);
      inner_->write(half);
      state_->unsynced.wrote(id_, end_, static_cast<Bytes>(half.size()));
    });
    inner_->write(bytes);
    state_->unsynced.wrote(id_, end_, static_cast<Bytes>(bytes.size()));
    end_ += static_cast<Bytes>(bytes.size());
  }

  void write_at(Bytes offset, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(state_->mutex);
    state_->begin("write_at " + path_.string(), path_, true, [&] {
      const auto half = bytes.first(bytes.size() / 2);
      inner_->write_at(offset, half);
      state_->unsynced.wrote(id_, offset, static_cast<Bytes>(half.size()));
    });
    inner_->write_at(offset, bytes);
    state_->unsynced.wrote(id_, offset, static_cast<Bytes>(bytes.size()));
    end_ = std::max(end_, offset + static_cast<Bytes>(bytes.size()));
  }

  void sync() override {
    const std::lock_guard lock(state_->mutex);
    state_->begin("sync " + path_.string(), path_, true);
    inner_->sync();
    state_->unsynced.synced(id_);
  }

  void close() override {
    const std::lock_guard lock(state_->mutex);
    state_->begin("close " + path_.string(), path_, false);
    inner_->close();
  }

 private:
  std::shared_ptr<State> state_;
  fs::path path_;
  std::unique_ptr<WritableFile> inner_;
  Unsynced::FileId id_;
  Bytes end_ = 0;
};

FaultyFiles::FaultyFiles(Files& inner, const FileFault& fault) : state_(std::make_shared<State>(inner, fault)) {}
FaultyFiles::~FaultyFiles() = default;

std::int64_t FaultyFiles::operations() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->history.size());
}

std::vector<std::string> FaultyFiles::history() const {
  const std::lock_guard lock(state_->mutex);
  return state_->history;
}

std::unique_ptr<WritableFile> FaultyFiles::create(const fs::path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin("create " + path.string(), path, true);
  const bool existed = fs::exists(path);
  auto file = state_->inner.create(path);
  const Unsynced::FileId id = state_->fault.drop_unsynced ? state_->unsynced.created(path, !existed) : -1;
  return std::make_unique<File>(state_, path, std::move(file), id);
}

void FaultyFiles::make_directories(const fs::path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin("make_directories " + path.string(), path, true);
  std::vector<fs::path> fresh;  // outermost first
  for (fs::path folder = path; !folder.empty() && !fs::exists(folder); folder = folder.parent_path()) {
    fresh.insert(fresh.begin(), folder);
  }
  state_->inner.make_directories(path);
  if (!state_->fault.drop_unsynced) return;
  for (const fs::path& folder : fresh) state_->unsynced.made_directory(folder);
}

void FaultyFiles::rename(const fs::path& from, const fs::path& to) {
  const std::lock_guard lock(state_->mutex);
  state_->begin("rename " + from.string() + " -> " + to.string(), to, false);
  if (!state_->fault.drop_unsynced) return state_->inner.rename(from, to);
  Tree replaced = Tree::read(to);
  state_->inner.rename(from, to);
  state_->unsynced.renamed(from, to, std::move(replaced));
}

void FaultyFiles::remove_all(const fs::path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin("remove_all " + path.string(), path, false, [&] { state_->remove_half(path); });
  if (!state_->fault.drop_unsynced) return state_->inner.remove_all(path);
  Tree removed = Tree::read(path);
  state_->inner.remove_all(path);
  state_->unsynced.removed(path, std::move(removed));
}

void FaultyFiles::sync_directory(const fs::path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin("sync_directory " + path.string(), path, false);
  state_->inner.sync_directory(path);
  state_->unsynced.synced_directory(path);
}

std::unique_ptr<ReadableFile> FaultyFiles::open(const fs::path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->check_alive();
  return state_->inner.open(path);
}

bool FaultyFiles::exists(const fs::path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->check_alive();
  return state_->inner.exists(path);
}

std::vector<std::string> FaultyFiles::list(const fs::path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->check_alive();
  return state_->inner.list(path);
}

Files& environment_files() {
  static Files* const files = []() -> Files* {
    const char* const text = std::getenv("PROTRAIN_FILE_FAULT");
    if (text == nullptr || *text == '\0') return &real_files();
    return new FaultyFiles(real_files(), parse_file_fault(text));
  }();
  return *files;
}

}  // namespace protrain
