#include "train/prepare_data.h"

#include <fnmatch.h>
#include <glob.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "train/child_process.h"
#include "train/python.h"
#include "train/signals.h"

namespace protrain {
namespace fs = std::filesystem;
namespace {

constexpr Bytes kHashPieceBytes = 8 * kMiB;
constexpr int kPrepareVersion = 3;  // raised when the same input would be prepared differently
constexpr std::string_view kMessagePrefix = "protrain prepare: ";

// A data file that is absent or cannot be read is a data fault, not one of model files.
template <typename Do>
auto as_data_fault(Do&& action) {
  try {
    return std::forward<Do>(action)();
  } catch (const Error& error) {
    throw Error(ExitCode::kData, error.what());
  }
}

// A folder's own name may look like a pattern.
std::string literally(const std::string& name) {
  std::string escaped;
  for (const char c : name) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::vector<std::string> names_of(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> names;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) names.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return names;
}

// What the entries of a tokenizer can lie in: the patterns of python/protrain/tokenizer.py.
constexpr std::array kVocabularyFiles = {"tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken"};
// What else of its folder can change token ids or templates.
constexpr std::array kShapingFiles = {
    "tokenizer*",      "*vocab*",     "merges*",         "*.codes",       "*.spm",          "dict.txt",   "emoji.json",
    "normalizer.json", "word_*.json", "special_tokens*", "added_tokens*", "chat_template*", "config.json"};
constexpr const char* kMoreTemplates = "additional_chat_templates";

bool matches_any(const std::string& name, std::span<const char* const> patterns) {
  return std::ranges::any_of(patterns, [&](const char* pattern) { return fnmatch(pattern, name.c_str(), 0) == 0; });
}

// Data of token ids needs none.
bool has_tokenizer(Files& files, const fs::path& folder) {
  return std::ranges::any_of(files.list(folder),
                             [](const std::string& name) { return matches_any(name, kVocabularyFiles); });
}

// Within `folder`. What is there but cannot be read is refused where it is opened.
std::vector<fs::path> tokenizer_files(Files& files, const fs::path& folder) {
  std::vector<fs::path> found;
  for (const std::string& name : files.list(folder)) {
    if (matches_any(name, kVocabularyFiles) || matches_any(name, kShapingFiles)) found.emplace_back(name);
  }
  if (folder_fault(folder / kMoreTemplates).empty()) {
    for (const std::string& name : files.list(folder / kMoreTemplates)) {
      found.push_back(fs::path(kMoreTemplates) / name);
    }
  }
  std::erase_if(found, [&](const fs::path& name) {
    std::error_code error;
    const fs::file_status status = fs::status(folder / name, error);
    return fs::is_directory(status) || status.type() == fs::file_type::not_found;
  });
  return found;
}

// "transformers-5.24.0.dist-info" and its like, beside this Python; none where it lies in no environment of its own.
std::vector<std::string> libraries_of(const fs::path& python) {
  std::vector<std::string> found;
  if (!python.has_parent_path()) return found;
  const std::string packages = literally((python.parent_path() / "..").string()) + "/lib/python3*/site-packages/";
  for (const char* library : {"tokenizers", "transformers"}) {
    for (const std::string& name : names_of(packages + library + "-[0-9]*.dist-info")) {
      found.push_back(fs::path(name).filename().string());
    }
  }
  return found;
}

// What makes ids and renders chats. No Python is asked, so that cached data needs none: of one that does not show its
// libraries those of the build are taken.
std::vector<std::string> tokenizing_libraries() {
  std::vector<std::string> libraries = libraries_of(python_executable());
  return libraries.empty() ? libraries_of(environment_python()) : libraries;
}

class ContentHash {
 public:
  ContentHash() { XXH3_128bits_reset(&state_); }
  void add(std::string_view text) {
    const std::uint64_t size = text.size();
    XXH3_128bits_update(&state_, &size, sizeof size);
    XXH3_128bits_update(&state_, text.data(), text.size());
  }
  void add_file(Files& files, const fs::path& path) {
    const std::unique_ptr<ReadableFile> file = files.open(path);
    std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kHashPieceBytes, file->size())));
    for (Bytes at = 0; at < file->size(); at += kHashPieceBytes) {
      stop_if_signalled();
      const auto count = static_cast<std::size_t>(std::min(kHashPieceBytes, file->size() - at));
      file->read_at(at, std::span(piece).first(count));
      XXH3_128bits_update(&state_, piece.data(), count);
    }
    const auto size = static_cast<std::uint64_t>(file->size());
    XXH3_128bits_update(&state_, &size, sizeof size);
  }
  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  // The struct wants 64-byte alignment, which a member gives.
  XXH3_state_t state_;
};

fs::path cache_folder(const TrainConfig& config) {
  if (!config.dataset_prepared_path.empty()) return config.dataset_prepared_path;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return fs::path(cache) / "protrain" / "data";
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache" / "protrain" / "data";
  return fs::path(config.output_dir) / "data";
}

fs::path tokenizer_folder(const TrainConfig& config) {
  for (const std::string* folder : {&config.tokenizer_name, &config.model_name_or_path, &config.config_name}) {
    if (!folder->empty()) return *folder;
  }
  return {};
}

std::vector<std::string> prepare_options(const TrainConfig& config, bool all_samples, std::int64_t vocabulary) {
  std::vector<std::string> options = {"--form", config.form, "--vocabulary", std::to_string(vocabulary)};
  if (config.max_samples > 0 && !all_samples) {
    options.insert(options.end(), {"--max-samples", std::to_string(config.max_samples)});
  }
  if (config.train_on_prompt) options.emplace_back("--train-on-prompt");
  if (config.mask_history) options.emplace_back("--mask-history");
  if (!config.add_eos) options.emplace_back("--no-eos");
  if (config.append_bos != Switch::kAuto) {
    options.insert(options.end(), {"--append-bos", config.append_bos == Switch::kTrue ? "yes" : "no"});
  }
  if (config.skip_bad) options.emplace_back("--skip-bad");
  return options;
}

std::string cache_name(Files& files, const std::vector<fs::path>& inputs, const fs::path& tokenizer,
                       const std::vector<std::string>& options) {
  ContentHash hash;
  hash.add(std::to_string(kPrepareVersion));
  for (const std::string& option : options) hash.add(option);
  for (const fs::path& input : inputs) {
    hash.add(input.extension().string());  // tells the file type
    as_data_fault([&] { hash.add_file(files, input); });
  }
  for (const std::string& library : tokenizing_libraries()) hash.add(library);
  for (const fs::path& name : tokenizer_files(files, tokenizer)) {
    hash.add(name.string());
    hash.add_file(files, tokenizer / name);
  }
  return hash.text();
}

ExitCode known_exit_code(int status) {
  switch (status) {
    case 2: return ExitCode::kConfig;
    case 4: return ExitCode::kData;
    case 5: return ExitCode::kFiles;
    default: return ExitCode::kInternal;
  }
}

void run_prepare(Files& files, const std::vector<fs::path>& inputs, const fs::path& tokenizer,
                 const std::vector<std::string>& options, const fs::path& output, std::string_view key) {
  std::vector<std::string> command = {python_executable(), "-m", "protrain.prepare"};
  if (has_tokenizer(files, tokenizer)) command.insert(command.end(), {"--tokenizer=" + tokenizer.string()});
  // One word each: a name may begin with "--".
  for (const fs::path& input : inputs) command.push_back("--input=" + input.string());
  command.insert(command.end(), {"--output", output.string(), "--overwrite"});  // what was cached may be damaged
  command.insert(command.end(), options.begin(), options.end());

  // The last line of a failure is its message, so a line is logged when the next one comes.
  std::string last;
  bool spoke = false;  // the Python part itself wrote that line
  // PROTRAIN_CALLER: messages name keys of the configuration, and the child ends when this process does, even by
  // SIGKILL. PROTRAIN_KEY: whose files these are.
  const std::map<std::string, std::string> environment = {{"PYTHONPATH", python_modules()},
                                                          {"PROTRAIN_CALLER", std::to_string(getpid())},
                                                          {"PROTRAIN_KEY", std::string(key)}};
  const int status = run_child(command, environment, [&](const std::string& line) {
    if (!last.empty()) log::info("{}", last);
    spoke = line.starts_with(kMessagePrefix);
    last = spoke ? line.substr(kMessagePrefix.size()) : line;
  });
  if (status == 0 && files.exists(output)) {
    if (!last.empty()) log::info("{}", last);
    return;
  }
  if (!spoke) {
    if (const std::string fault = python_fault(); !fault.empty()) fail(ExitCode::kConfig, "{}", fault);
  }
  const ExitCode code = known_exit_code(status);
  if (code == ExitCode::kInternal) {
    fail(code, "preparing data with {} ended with code {}: {}", command[0], status, last);
  }
  throw Error(code, last);
}

}  // namespace

bool is_prepared(Files& files, const fs::path& path) {
  std::array<std::byte, 8> start{};
  const bool long_enough = as_data_fault([&] {
    const std::unique_ptr<ReadableFile> file = files.open(path);
    if (file->size() < static_cast<Bytes>(start.size())) return false;
    file->read_at(0, start);
    return true;
  });
  if (!long_enough) return false;
  if (std::memcmp(start.data(), "PTKTOK1\0", 8) == 0 || std::memcmp(start.data(), "BIN.TOK\n", 8) == 0) return true;
  std::int32_t magic = 0;
  std::memcpy(&magic, start.data(), sizeof magic);
  return magic == 20240520 || magic == 20240801;  // llm.c: GPT-2 and LLaMA-3 token files
}

namespace {

// `folder` and those below it, but for hidden ones and links, which may lead back.
void add_folders(const fs::path& folder, std::vector<fs::path>* folders) {
  folders->push_back(folder);
  std::error_code error, unknown;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const bool hidden = entry->path().filename().string().starts_with('.');
    if (!hidden && fs::is_directory(entry->symlink_status(unknown))) add_folders(entry->path(), folders);
  }
}

// As a shell's, but that a part `**` is any number of folders, none too.
void add_files(const std::string& pattern, std::set<std::string>* files) {
  std::size_t at = std::string::npos;  // of the first `**`
  if (pattern == "**" || pattern.starts_with("**/")) {
    at = 0;
  } else if (const std::size_t inside = pattern.find("/**/"); inside != std::string::npos) {
    at = inside + 1;
  } else if (pattern.ends_with("/**")) {
    at = pattern.size() - 2;
  }
  if (at == std::string::npos) {
    std::error_code error;
    for (const std::string& name : names_of(pattern)) {
      if (fs::is_regular_file(name, error)) files->insert(name);
    }
    return;
  }
  const std::string rest = at + 3 < pattern.size() ? pattern.substr(at + 3) : "*";
  std::error_code absent;
  for (const std::string& start : at == 0 ? std::vector<std::string>{""} : names_of(pattern.substr(0, at))) {
    if (!start.empty() && !fs::is_directory(start, absent)) continue;
    std::vector<fs::path> folders;
    add_folders(start.empty() ? "." : start, &folders);
    for (const fs::path& folder : folders) {
      const fs::path below = start.empty() ? folder.lexically_relative(".") : folder;
      add_files(literally((below == "." ? fs::path() : below / "").string()) + rest, files);
    }
  }
}

}  // namespace

std::vector<fs::path> expand_patterns(const std::vector<std::string>& patterns, std::string_view key) {
  std::vector<fs::path> out;
  for (const std::string& pattern : patterns) {
    std::error_code error;
    const fs::file_status status_of_name = fs::status(pattern, error);
    if (fs::is_regular_file(status_of_name)) {
      out.emplace_back(pattern);
      continue;
    }
    if (fs::is_directory(status_of_name)) {
      fail(ExitCode::kData, "{}: {} is a folder; give files, or a pattern such as {}", key, pattern,
           (fs::path(pattern) / "*.jsonl").string());
    }
    if (fs::exists(status_of_name)) fail(ExitCode::kData, "{}: {} is not a regular file", key, pattern);
    if (status_of_name.type() == fs::file_type::none)
      fail(ExitCode::kData, "{}: {}: {}", key, pattern, error.message());
    std::set<std::string> found;
    add_files(pattern, &found);
    const std::size_t before = out.size();
    out.insert(out.end(), found.begin(), found.end());
    if (out.size() == before) fail(ExitCode::kData, "{}: no file {}", key, pattern);
  }
  return out;
}

namespace {

// The input itself where it is prepared.
std::optional<fs::path> prepared_input(Files& files, const std::vector<fs::path>& inputs, std::string_view key) {
  const auto prepared = std::ranges::find_if(inputs, [&](const fs::path& input) { return is_prepared(files, input); });
  if (prepared != inputs.end()) {
    if (inputs.size() > 1) {
      fail(ExitCode::kConfig, "{}: {} is a prepared file, so it must stand alone; {} files are given", key,
           prepared->string(), inputs.size());
    }
    return *prepared;
  }
  for (const fs::path& input : inputs) {
    if (input.extension() == ".ptk" || input.extension() == ".bin") {
      fail(ExitCode::kData, "{}: {} does not begin as a prepared file does: it is damaged, or no token file", key,
           input.string());
    }
  }
  return std::nullopt;
}

fs::path cached_file(Files& files, const TrainConfig& config, const std::vector<fs::path>& inputs,
                     const std::vector<std::string>& options) {
  return cache_folder(config) / (cache_name(files, inputs, tokenizer_folder(config), options) + ".ptk");
}

}  // namespace

std::optional<fs::path> find_prepared(Files& files, const TrainConfig& config, const std::vector<std::string>& patterns,
                                      std::string_view key, std::int64_t vocabulary) {
  const std::vector<fs::path> inputs = expand_patterns(patterns, key);
  if (std::optional<fs::path> prepared = prepared_input(files, inputs, key)) return prepared;
  if (!folder_fault(tokenizer_folder(config)).empty()) return std::nullopt;
  fs::path cached = cached_file(files, config, inputs, prepare_options(config, key != "train_file", vocabulary));
  if (!files.exists(cached)) return std::nullopt;
  return cached;
}

PreparedFile prepared_file(Files& files, const TrainConfig& config, const std::vector<std::string>& patterns,
                           std::string_view key, std::int64_t vocabulary, Cache cache) {
  const std::vector<fs::path> inputs = expand_patterns(patterns, key);
  if (std::optional<fs::path> prepared = prepared_input(files, inputs, key)) return {std::move(*prepared), false};

  const fs::path tokenizer = tokenizer_folder(config);
  if (const std::string fault = folder_fault(tokenizer); !fault.empty()) {
    fail(ExitCode::kConfig, "{} {}, so there is no tokenizer for {}: give tokenizer_name", tokenizer.string(), fault,
         inputs[0].string());
  }
  const std::vector<std::string> options = prepare_options(config, key != "train_file", vocabulary);
  const fs::path cached = cached_file(files, config, inputs, options);
  if (cache == Cache::kUse && files.exists(cached)) {
    log::info("{}: {} (prepared before)", key, cached.string());
    return {cached, true};
  }
  log::info("{}: preparing {} file{} into {}", key, inputs.size(), inputs.size() == 1 ? "" : "s", cached.string());
  as_data_fault([&] { files.make_directories(cached.parent_path()); });
  // Written aside and renamed when it is whole, whatever ends either process.
  run_prepare(files, inputs, tokenizer, options, cached, key);
  return {cached, false};
}

}  // namespace protrain
