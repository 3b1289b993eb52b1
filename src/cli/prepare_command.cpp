#include "cli/become_python.h"
#include "cli/commands.h"

namespace protrain::cli {

int prepare_command(const std::vector<std::string>& words) { become_python("protrain.prepare", words); }

}  // namespace protrain::cli
