// Parses arbitrary bytes as a configuration: the only way out is Error(kConfig), of one line; what is accepted lies in
// its key's range and reads back from its own print.
//
// clang-format off
// sources: src/train/config.cpp src/train/config_json.cpp src/train/config_keys.cpp src/train/config_text.cpp src/base/error.cpp src/base/units.cpp
// clang-format on
// libraries: -lyaml-cpp -lfmt
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "train/config.h"

namespace {

void check_ranges(const protrain::TrainConfig& config) {
  for (const protrain::ConfigKey& key : protrain::config_keys()) {
    const auto check = [&](double value) {
      if (!(value >= key.min && value <= key.max) || (key.below_max && value == key.max)) std::abort();
    };
    if (const auto* member = std::get_if<double protrain::TrainConfig::*>(&key.member)) check(config.**member);
    if (const auto* member = std::get_if<std::int64_t protrain::TrainConfig::*>(&key.member)) {
      check(static_cast<double>(config.**member));
    }
  }
}

}  // namespace

// Bytes up to the first NUL are the file, the rest are command-line words, cut at NULs.
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
  try {
    const protrain::TrainConfig config = protrain::parse_config(yaml, "f.yaml", words);
    check_ranges(config);
    const std::string printed = protrain::print_config(config);
    if (protrain::print_config(protrain::parse_config(printed, "printed.yaml", {})) != printed) std::abort();
  } catch (const protrain::Error& error) {
    const std::string message = error.what();
    if (error.code() != protrain::ExitCode::kConfig || message.empty()) std::abort();
    if (message.find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
