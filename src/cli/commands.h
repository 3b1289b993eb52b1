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
  bool overwrite = false;
};
int export_command(const ExportArguments&);

struct InitArguments {
  std::string config, to;
  std::int64_t seed = 42;  // at least 0
  std::string dtype = "float32";
  bool overwrite = false;
};
int init_command(const InitArguments&);

// words: CONFIG.yaml, then options of the command, then --key value pairs, in any order.
int plan_command(const std::vector<std::string>& words);
bool plan_measures(const std::vector<std::string>& words);  // it runs blocks on this machine
std::string plan_help();

// words: CONFIG.yaml, then --output FILE, --refresh and --key value pairs, in any order.
int profile_command(const std::vector<std::string>& words);

struct ReportArguments {
  std::string run, output;  // output: empty for report.html in the run's folder
};
int report_command(const ReportArguments&);

int version_command();

}  // namespace protrain::cli
