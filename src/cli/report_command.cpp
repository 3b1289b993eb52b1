#include "base/error.h"
#include "cli/commands.h"

namespace protrain::cli {

int report_command(const ReportArguments&) { fail(ExitCode::kConfig, "not there yet"); }

}  // namespace protrain::cli
