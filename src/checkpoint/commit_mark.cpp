#include "checkpoint/commit_mark.h"

#define XXH_INLINE_ALL
#include <fmt/core.h>
#include <xxhash.h>

#include <charconv>
#include <vector>

#include "base/error.h"
#include "checkpoint/folder_names.h"

namespace protrain {
namespace {

// Text: the first line, a line "BYTES NAME" for each file, and a last line with the xxh64 of all before it.
constexpr std::string_view kFirstLine = "protrain checkpoint 1\n";
constexpr std::string_view kDigest = "xxh64 ";
constexpr Bytes kLongestMark = 16 * kMiB;

std::string digest_line(std::string_view text) {
  return fmt::format("{}{:016x}\n", kDigest, XXH64(text.data(), text.size(), 0));
}

}  // namespace

void write_commit_mark(Files& files, const std::filesystem::path& folder) {
  std::string text(kFirstLine);
  for (const std::string& name : files.list(folder)) {
    if (name != kCommitFile) text += fmt::format("{} {}\n", files.open(folder / name)->size(), name);
  }
  text += digest_line(text);
  files.write_text(folder / kCommitFile, text, true);
  files.sync_directory(folder);
}

std::string commit_fault(Files& files, const std::filesystem::path& folder) {
  const std::filesystem::path mark = folder / kCommitFile;
  if (!files.exists(mark)) return fmt::format("{} is missing: its save did not finish", mark.string());
  if (files.open(mark)->size() > kLongestMark) return fmt::format("{} is damaged", mark.string());
  const std::string text = files.read_text(mark);
  const std::size_t last = text.rfind(kDigest);
  if (!text.starts_with(kFirstLine) || last == std::string::npos ||
      text.substr(last) != digest_line(std::string_view(text).substr(0, last))) {
    return fmt::format("{} is damaged", mark.string());
  }
  std::string_view lines = std::string_view(text).substr(0, last);
  lines.remove_prefix(kFirstLine.size());
  while (!lines.empty()) {
    const std::size_t space = lines.find(' '), end = lines.find('\n');
    const std::filesystem::path file = folder / lines.substr(space + 1, end - space - 1);
    Bytes bytes = 0;
    std::from_chars(lines.begin(), lines.begin() + space, bytes);
    if (!files.exists(file)) return fmt::format("{} is missing", file.string());
    if (const Bytes found = files.open(file)->size(); found != bytes) {
      return fmt::format("{} has {} bytes, {} were saved", file.string(), found, bytes);
    }
    lines.remove_prefix(end + 1);
  }
  return {};
}

}  // namespace protrain
