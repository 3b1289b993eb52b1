// Log lines of the library. They go to one sink that src/cli installs (stderr by default: nothing); any thread may log.
#pragma once
#include <fmt/core.h>

#include <functional>
#include <string>
#include <utility>

namespace protrain::log {

enum class Level { kDebug, kInfo, kWarning, kError };
using Sink = std::function<void(Level, const std::string&)>;  // called one line at a time; must not log itself

void set_sink(Sink);  // replaces the sink; an empty one silences. Not while other threads log.
void write(Level, const std::string&);

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace protrain::log
