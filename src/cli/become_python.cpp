#include "cli/become_python.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "train/python.h"

namespace protrain::cli {

void become_python(const std::string& module, const std::vector<std::string>& words) {
  if (const std::string fault = python_fault(); !fault.empty()) fail(ExitCode::kConfig, "{}", fault);
  std::vector<std::string> command = {python_executable(), "-m", module};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  setenv("PYTHONPATH", python_modules().c_str(), 1);
  execvp(argv[0], argv.data());
  fail(ExitCode::kConfig, "cannot run {}: {}; PROTRAIN_PYTHON names the Python to use", command[0],
       std::strerror(errno));
}

}  // namespace protrain::cli
