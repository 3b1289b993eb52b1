// The program's commands, one file each. They return the process's exit code or throw.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace protrain::cli {

// words: CONFIG.yaml, then --key value pairs.
int train_command(const std::vector<std::string>& words);
std::string train_help();

// Becomes the Python part: does not return on success.
int prepare_command(const std::vector<std::string>& words);

struct ExportArguments {
  std::string from, to;
  std::string dtype = "auto";
};
int export_command(const ExportArguments&);

struct InitArguments {
  std::string config, to;
  std::uint64_t seed = 42;
  std::string dtype = "float32";
};
int init_command(const InitArguments&);

int version_command();

}  // namespace protrain::cli
