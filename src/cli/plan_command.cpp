#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/error.h"
#include "base/faulty_files.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "train/what_if.h"

namespace protrain::cli {
namespace {

constexpr std::string_view kOptions[] = {"hardware", "profile", "device-memory", "host-memory",
                                         "h2d",      "d2h",     "disk",          "gpus"};

struct PlanArguments {
  std::string config;
  std::map<std::string, std::string> options;
  bool json = false;
  std::vector<std::string> overrides;  // of the configuration
};

void set_once(std::map<std::string, std::string>& options, const std::string& name, const std::string& value) {
  const auto [other, fresh] = options.emplace(name, value);
  if (!fresh) {
    fail(ExitCode::kConfig, "plan: --{} is given twice, as '{}' and as '{}': drop one", name, other->second, value);
  }
}

// Options of this command are taken out wherever they stand; the rest are keys of the configuration.
PlanArguments split(const std::vector<std::string>& words) {
  if (words.empty() || words[0].starts_with("--")) {
    fail(ExitCode::kConfig,
         "plan: the configuration comes first: protrain plan CONFIG.yaml [--hardware FILE ...] [--key value ...]");
  }
  PlanArguments arguments;
  arguments.config = words[0];
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto equals = word.find('=');
    std::string name = word.starts_with("--") ? word.substr(2, equals == std::string::npos ? equals : equals - 2) : "";
    std::replace(name.begin(), name.end(), '_', '-');
    if (word == "--json") {
      arguments.json = true;
    } else if (std::find(std::begin(kOptions), std::end(kOptions), name) == std::end(kOptions)) {
      arguments.overrides.push_back(word);
    } else if (equals != std::string::npos) {
      set_once(arguments.options, name, word.substr(equals + 1));
    } else if (i + 1 < words.size() && !words[i + 1].starts_with("--")) {
      set_once(arguments.options, name, words[++i]);
    } else {
      fail(ExitCode::kConfig, "plan: {} has no value; see protrain plan --help", word);
    }
  }
  return arguments;
}

Bytes memory(const std::string& name, const std::string& text) {
  Bytes bytes = 0;
  try {
    bytes = parse_bytes(text);
  } catch (const Error&) {
    bytes = 0;  // refused below, under the option's name
  }
  if (bytes <= 0) fail(ExitCode::kConfig, "--{}: {}: it must be a size such as 24GiB", name, text);
  return bytes;
}

double number(const std::string& name, const std::string& text, std::string_view right) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 1e-6 ||
      value > 1e6) {
    fail(ExitCode::kConfig, "--{}: {}: it must be {}", name, text, right);
  }
  return value;
}

WhatIfOptions options_of(const PlanArguments& arguments) {
  WhatIfOptions options;
  for (const auto& [name, value] : arguments.options) {
    if (value.empty()) fail(ExitCode::kConfig, "--{}: it is empty; see protrain plan --help", name);
    const auto gigabytes = [&] { return 1e9 * number(name, value, "a number of GB/s, 1e-6 to 1e6, such as 15.8"); };
    if (name == "hardware") options.hardware = value;
    if (name == "profile") options.profile = value;
    if (name == "device-memory") options.device_memory = memory(name, value);
    if (name == "host-memory") options.host_memory = memory(name, value);
    if (name == "h2d") options.h2d_bytes = gigabytes();
    if (name == "d2h") options.d2h_bytes = gigabytes();
    if (name == "disk") options.disk = gigabytes();
    if (name == "gpus") {
      const double gpus = number(name, value, "a whole number of GPUs");
      if (gpus != std::floor(gpus)) fail(ExitCode::kConfig, "--gpus: {}: it must be a whole number of GPUs", value);
      options.gpus = static_cast<int>(gpus);
    }
  }
  return options;
}

}  // namespace

int plan_command(const std::vector<std::string>& words) {
  const PlanArguments arguments = split(words);
  const WhatIfOptions options = options_of(arguments);
  const TrainConfig config = load_config(arguments.config, arguments.overrides);
  const WhatIf answer = what_if(environment_files(), config, options);
  std::string text;
  if (arguments.json) {
    text = what_if_json(answer);
  } else if (answer.fits()) {
    for (const std::string& line : what_if_lines(answer)) text += line + "\n";
  }
  print_answer(text);
  if (!answer.fits()) fail(ExitCode::kDoesNotFit, "{}", what_is_missing(answer));
  return 0;
}

bool plan_measures(const std::vector<std::string>& words) {
  return std::none_of(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("--hardware") || word.starts_with("--profile");
  });
}

std::string plan_help() {
  return "Options:\n"
         "  --json                the answer as JSON\n"
         "  --hardware FILE       a machine that is not there: hardware/h200.json, hardware/rtx4090.json, ...; times\n"
         "                        and bytes are estimates then. Without it and --profile: this machine, measured\n"
         "  --profile FILE        what protrain profile wrote, of this or another machine\n"
         "  --device-memory SIZE  how much there is: 24GiB (a limit within it: --device_memory_limit)\n"
         "  --host-memory SIZE    what a run may take of the host's; train leaves a 32nd of it to the system\n"
         "  --h2d, --d2h GB/s     how fast the link is each way: 15.8\n"
         "  --disk GB/s           noted; no plan uses a disk yet\n"
         "  --gpus N              1; several come later\n"
         "Every key of CONFIG.yaml can be given too, as in protrain train --help.\n"
         "Only config.json of the model is read, and of the data what is prepared. Exit code 3: nothing fits.\n";
}

}  // namespace protrain::cli
