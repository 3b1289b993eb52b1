#include "base/error.h"
#include "cli/commands.h"

namespace protrain::cli {

int plan_command(const std::vector<std::string>&) { fail(ExitCode::kConfig, "not there yet"); }
std::string plan_help() { return {}; }

}  // namespace protrain::cli
