#include "cli/terminal.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "base/log.h"

namespace protrain::cli {
namespace {

bool on_terminal() {
  static const bool kTerminal = isatty(STDERR_FILENO) == 1;
  return kTerminal;
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

void install_log_sink() {
  log::set_sink([](log::Level level, const std::string& line) {
    if (level == log::Level::kDebug) return;
    const char* prefix = level == log::Level::kWarning ? "protrain: warning: " : "";
    print((on_terminal() ? "\r\x1b[K" : "") + std::string(prefix) + line + "\n");  // over the progress bar
  });
}

ProgressOptions terminal_progress() { return {.terminal = on_terminal(), .print = print, .signals_on = STDERR_FILENO}; }

void print_answer(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

bool answers_arrived() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
}

void print_error(const std::string& message) {
  print((on_terminal() ? "\r\x1b[K" : "") + std::string("protrain: error: ") + message.substr(0, message.find('\n')) +
        "\n");
}

}  // namespace protrain::cli
