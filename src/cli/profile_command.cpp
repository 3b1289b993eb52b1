#include "base/error.h"
#include "cli/commands.h"

namespace protrain::cli {

int profile_command(const std::vector<std::string>&) { fail(ExitCode::kConfig, "not there yet"); }

}  // namespace protrain::cli
