// stderr as the program's one place for lines and the progress bar, and stdout as that for answers.
#pragma once
#include <string>

#include "train/progress.h"

namespace protrain::cli {

void install_log_sink();
ProgressOptions terminal_progress();
void print_answer(const std::string& text);
// Whether all that was written to stdout has arrived.
bool answers_arrived();
// The one line of an error; text after its first line is left out.
void print_error(const std::string& message);

}  // namespace protrain::cli
