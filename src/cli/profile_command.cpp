#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/faulty_files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "train/profile_run.h"
#include "train/profile_text.h"

namespace protrain::cli {
namespace {

struct ProfileArguments {
  std::string config, output;
  bool refresh = false;
  std::vector<std::string> overrides;  // of the configuration
};

// Options of this command are taken out wherever they stand; the rest are keys of the configuration.
ProfileArguments split(const std::vector<std::string>& words) {
  if (words.empty() || words[0].starts_with("--")) {
    fail(
        ExitCode::kConfig,
        "profile: the configuration comes first: protrain profile CONFIG.yaml [--output FILE] [--refresh] [--key value "
        "...]");
  }
  constexpr std::string_view kOutput = "--output=";
  ProfileArguments arguments;
  arguments.config = words[0];
  const auto set_output = [&](const std::string& file) {
    if (!arguments.output.empty()) {
      fail(ExitCode::kConfig, "profile: --output is given twice, as '{}' and as '{}': drop one", arguments.output,
           file);
    }
    arguments.output = file;
  };
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--refresh") {
      arguments.refresh = true;
    } else if (word.starts_with(kOutput) && word.size() > kOutput.size()) {
      set_output(word.substr(kOutput.size()));
    } else if (word == "--output" && i + 1 < words.size() && !words[i + 1].starts_with("--")) {
      set_output(words[++i]);
    } else if (word == "--output" || word == kOutput) {
      fail(ExitCode::kConfig, "profile: --output has no value: give the file to write");
    } else {
      arguments.overrides.push_back(word);
    }
  }
  return arguments;
}

}  // namespace

int profile_command(const std::vector<std::string>& words) {
  const ProfileArguments arguments = split(words);
  const TrainConfig config = load_config(arguments.config, arguments.overrides);
  Files& files = environment_files();
  const std::filesystem::path parent = std::filesystem::path(arguments.output).parent_path();
  if (!parent.empty() && !files.exists(parent)) {
    fail(ExitCode::kConfig, "--output: {}: there is no folder {}", arguments.output, parent.string());
  }
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(arguments.output, error);
  if (std::filesystem::is_directory(status)) {
    fail(ExitCode::kConfig, "--output: {} is a folder; give a file", arguments.output);
  }
  if (status.type() == std::filesystem::file_type::none) {
    fail(ExitCode::kConfig, "--output: {}: {}; give a file that can be written", arguments.output, error.message());
  }
  const ProfiledRun run =
      profile_run(files, config, arguments.refresh, [](const std::string& line) { log::info("{}", line); });
  std::string text;
  for (const std::string& line : profile_lines(run.profile, run.model->spec)) text += line + "\n";
  print_answer(text);
  if (!arguments.output.empty()) {
    files.write_text(arguments.output, profile_json(run.profile), false);
    log::info("profile written to {}", arguments.output);
  }
  return 0;
}

}  // namespace protrain::cli
