// Commands that are written in Python: the process becomes it.
#pragma once
#include <string>
#include <vector>

namespace protrain::cli {

// `python -m MODULE WORDS...` with the project's own modules; does not return. Error(kConfig) when there is no Python
// that can.
[[noreturn]] void become_python(const std::string& module, const std::vector<std::string>& words);

}  // namespace protrain::cli
