#include "checkpoint/commit_mark.h"

#define XXH_INLINE_ALL
#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/json_files.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

// Text: the first line, a line "BYTES XXH3-128 NAME" for each file, and a last line with the xxh64 of all before it.
constexpr std::string_view kFirstLine = "protrain checkpoint 2\n";
constexpr std::string_view kDigest = "xxh64 ";
constexpr Bytes kLongestMark = 16 * kMiB;
constexpr std::size_t kHexDigits = 16;

std::string digest_line(std::string_view text) {
  return fmt::format("{}{:016x}\n", kDigest, XXH64(text.data(), text.size(), 0));
}

template <typename T>
T parsed(std::string_view text, int base) {
  T value{};
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

using Mark = std::map<std::string, FileDigest>;

// Nothing when it is damaged.
std::optional<Mark> read_mark(Files& files, const fs::path& path) {
  if (files.open(path)->size() > kLongestMark) return std::nullopt;
  const std::string text = files.read_text(path);
  const std::size_t last = text.rfind(kDigest);
  if (!text.starts_with(kFirstLine) || last == std::string::npos ||
      text.substr(last) != digest_line(std::string_view(text).substr(0, last))) {
    return std::nullopt;
  }
  // The last line vouches for the form of those before it.
  Mark mark;
  std::string_view lines = std::string_view(text).substr(0, last);
  lines.remove_prefix(kFirstLine.size());
  while (!lines.empty()) {
    const std::size_t space = lines.find(' '), end = lines.find('\n');
    const std::size_t name = space + 2 + 2 * kHexDigits;
    FileDigest digest;
    digest.bytes = parsed<Bytes>(lines.substr(0, space), 10);
    digest.high = parsed<std::uint64_t>(lines.substr(space + 1, kHexDigits), 16);
    digest.low = parsed<std::uint64_t>(lines.substr(space + 1 + kHexDigits, kHexDigits), 16);
    mark.emplace(lines.substr(name, end - name), digest);
    lines.remove_prefix(end + 1);
  }
  return mark;
}

bool is_state_of_ours(Files& files, const fs::path& path) try {
  return files.exists(path) && (parse_trainer_state(files.read_text(path), path.string()), true);
} catch (const Error&) {
  return false;
}

}  // namespace

void write_commit_mark(Files& files, const fs::path& folder, const std::map<std::string, FileDigest>& digests) {
  std::string text(kFirstLine);
  for (const std::string& name : files.list(folder)) {
    if (name == kCommitFile) continue;
    const auto digest = digests.find(name);
    PROTRAIN_CHECK(digest != digests.end(), "{} was not written with the others", (folder / name).string());
    text += fmt::format("{} {:016x}{:016x} {}\n", digest->second.bytes, digest->second.high, digest->second.low, name);
  }
  text += digest_line(text);
  files.write_text(folder / kCommitFile, text, true);
  files.sync_directory(folder);
}

CommitCheck check_commit(Files& files, const fs::path& folder) try {
  const auto none = [](std::string fault) { return CommitCheck{Commit::kNone, std::move(fault)}; };
  // Not exists(), which takes what it cannot look at for missing.
  const std::vector<std::string> names = files.list(folder);
  const auto has = [&](const std::string& name) { return std::ranges::binary_search(names, name); };
  const fs::path path = folder / kCommitFile;
  if (!has(kCommitFile)) return none(fmt::format("{} is missing: its save did not finish", path.string()));
  const std::optional<Mark> mark = read_mark(files, path);
  if (!mark) return none(fmt::format("{} is damaged", path.string()));
  for (const auto& [name, digest] : *mark) {
    const fs::path file = folder / name;
    if (!has(name)) return none(fmt::format("{} is missing", file.string()));
    if (const Bytes found = files.open(file)->size(); found != digest.bytes) {
      return none(fmt::format("{} has {} bytes, {} were saved", file.string(), found, digest.bytes));
    }
  }
  return {};
} catch (const Error& error) {
  return {Commit::kUnknown, error.what()};
}

void check_saved(Files& files, const fs::path& folder) {
  // trainer_state.json and the name checkpoint-<step> are other programs' too.
  const bool marked = files.exists(folder / kCommitFile);
  const bool ours = marked || files.exists(folder / kFirstMomentFile) || files.exists(folder / kSecondMomentFile) ||
                    is_state_of_ours(files, folder / kTrainerStateFile);
  if (!ours) return;
  if (const std::string fault = check_commit(files, folder).fault; !fault.empty()) {
    fail(ExitCode::kFiles, "{}: not a complete checkpoint: {}; give another checkpoint", folder.string(), fault);
  }
}

std::map<std::string, FileDigest> committed_files(Files& files, const fs::path& folder) {
  const fs::path path = folder / kCommitFile;
  if (!files.exists(path)) return {};
  return read_mark(files, path).value_or(Mark{});
}

}  // namespace protrain
