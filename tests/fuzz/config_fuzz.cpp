// Parses arbitrary bytes as a configuration: the only way out is Error(kConfig), of one line; what is accepted lies in
// its key's range, is of its choices, and reads back from its own print.
//
// clang-format off
// sources: src/train/config.cpp src/train/config_json.cpp src/train/config_keys.cpp src/train/config_text.cpp src/train/foreign_keys.cpp src/base/error.cpp src/base/units.cpp src/base/edit_distance.cpp
// mutant: src/train/config.cpp s/if \(!value \|\| !in_range\(\*value\)\) wrong\(text, right\);/if (!value) wrong(text, right);/
// mutant: src/train/config.cpp s/if \(!value \|\| !in_range\(static_cast<double>\(\*value\)\)\) \{/if (!value) {/
// mutant: src/train/config.cpp s/if \(!in_range\(static_cast<double>\(to.bytes\)\)\) wrong/if (false) wrong/
// mutant: src/train/config.cpp s/if \(list_ \|\| values_.size\(\) != 1\) wrong\(whole\(\), right\);//
// mutant: src/train/config.cpp s/out \+= static_cast<unsigned char>\(c\) < 0x20 \|\| c == 0x7f \? ' ' : c;/out += c;/
// mutant: src/train/config.cpp s/if \(choice == value\) return;/return;/
// mutant: src/train/config_text.cpp s/if \(key.name == "num_train_epochs" && config.max_steps >= 0\) continue;//
// mutant: src/train/config.cpp s/if \(!value \|\| !in_range\(\*value\)\) wrong\(text, right\);/if (value \&\& !in_range(*value)) wrong(text, right);/
// mutant: src/train/config.cpp s/if \(!value\) wrong\(values_\[0\], "true or false"\);//
// clang-format on
// libraries: -lyaml-cpp -lfmt
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/config.h"

namespace {

bool is_choice(std::string_view choices, const std::string& value) {
  return ("|" + std::string(choices) + "|").find("|" + value + "|") != std::string::npos &&
         value.find('|') == std::string::npos;
}

void check_ranges(const protrain::TrainConfig& config) {
  for (const protrain::ConfigKey& key : protrain::config_keys()) {
    const auto check = [&](double value) {
      if (!(value >= key.min && value <= key.max) || (key.below_max && value == key.max)) std::abort();
    };
    if (const auto* member = std::get_if<double protrain::TrainConfig::*>(&key.member)) check(config.**member);
    if (const auto* member = std::get_if<std::optional<double> protrain::TrainConfig::*>(&key.member)) {
      if (config.**member) check(*(config.**member));
    }
    if (const auto* member = std::get_if<protrain::ByteSize protrain::TrainConfig::*>(&key.member)) {
      const protrain::Bytes bytes = (config.**member).bytes;
      check(static_cast<double>(bytes));
    }
    if (const auto* member = std::get_if<std::vector<std::int64_t> protrain::TrainConfig::*>(&key.member)) {
      for (const std::int64_t value : config.**member) check(static_cast<double>(value));
    }
    if (const auto* member = std::get_if<std::string protrain::TrainConfig::*>(&key.member)) {
      if (!key.choices.empty() && !is_choice(key.choices, config.**member)) std::abort();
    }
    if (const auto* member = std::get_if<std::int64_t protrain::TrainConfig::*>(&key.member)) {
      check(static_cast<double>(config.**member));
    }
  }
}

// Whether it was accepted.
bool parse(const std::string& yaml, const std::vector<std::string>& words) {
  std::optional<protrain::TrainConfig> config;
  try {
    config = protrain::parse_config(yaml, "f.yaml", words);
  } catch (const protrain::Error& error) {
    const std::string message = error.what();
    if (error.code() != protrain::ExitCode::kConfig || message.empty()) std::abort();
    if (message.find('\n') != std::string::npos) std::abort();
    return false;
  }
  check_ranges(*config);
  const std::string printed = protrain::print_config(*config);  // is never refused
  if (protrain::print_config(protrain::parse_config(printed, "printed.yaml", {})) != printed) std::abort();
  return true;
}

}  // namespace

// Bytes up to the first NUL are the file, the rest are command-line words, cut at NULs. What is refused gets a second
// chance with the keys that every configuration needs, so that short inputs reach what lies behind them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> words;
  std::size_t at = all.find('\0');
  const std::string yaml = all.substr(0, at);
  while (at != std::string::npos) {
    const std::size_t end = all.find('\0', at + 1);
    words.push_back(all.substr(at + 1, end == std::string::npos ? end : end - at - 1));
    at = end;
  }
  if (parse(yaml, words)) return 0;
  words.insert(words.end(), {"--model_name_or_path=null", "--config_name=c", "--train_file=a", "--output_dir=o"});
  parse(yaml, words);
  return 0;
}
