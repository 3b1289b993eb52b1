// The Python that prepares data, and the project's own modules for it. Thread-safe.
#pragma once
#include <string>

namespace protrain {

// $PROTRAIN_PYTHON, else the interpreter of the environment whose LibTorch this process has loaded, else "python3".
std::string python_executable();
// Of these the second, whether chosen or not; empty when there is none.
std::string environment_python();
// Why that cannot prepare data, naming where it was chosen and what would be right; empty when it can. Runs it.
std::string python_fault();
// The folder that holds the package `protrain`, for PYTHONPATH. Error(kConfig) when it cannot be found.
std::string python_modules();

}  // namespace protrain
