#include "base/faulty_files.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "train/trainer.h"

namespace protrain::cli {

int train_command(const std::vector<std::string>& words) {
  if (words.empty() || words[0].starts_with("--")) {
    fail(ExitCode::kConfig, "train: the configuration comes first: protrain train CONFIG.yaml [--key value ...]");
  }
  const TrainConfig config = load_config(words[0], std::span(words).subspan(1));
  return static_cast<int>(train(config, environment_files(), terminal_progress()));
}

std::string train_help() {
  return "Keys of CONFIG.yaml; each can also be given as --key value (hyphens or underscores):\n" + describe_keys();
}

}  // namespace protrain::cli
