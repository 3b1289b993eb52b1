#include "cli/become_python.h"
#include "cli/commands.h"

namespace protrain::cli {

int report_command(const ReportArguments& arguments) {
  std::vector<std::string> words;
  if (!arguments.output.empty()) words.push_back("--output=" + arguments.output);
  words.insert(words.end(), {"--", arguments.run});
  become_python("protrain.report", words);
}

}  // namespace protrain::cli
