// The two kinds of failure. Error: the user's (or the machine's) to mend; its message is one line that names the file,
// key or tensor, the value, and what would be right; `code` is the process's exit code. InternalError: a broken
// invariant. Nothing in the library prints or exits: src/cli turns these into one line and an exit code.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace protrain {

enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,
  kConfig = 2,
  kDoesNotFit = 3,
  kData = 4,
  kFiles = 5,  // model or checkpoint files
  kNonFinite = 6,
  kCommunication = 7,
  kHangup = 129,       // SIGHUP, with a checkpoint saved
  kInterrupted = 130,  // SIGINT, likewise
  kTerminated = 143,   // SIGTERM, likewise
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// fail(ExitCode::kData, "{}:{}: not JSON ({})", file, line, why)
template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace protrain

// Invariants only, never user input; on in every build.
#define PROTRAIN_CHECK(condition, ...)                                                                       \
  do {                                                                                                       \
    if (!(condition)) ::protrain::fail_check(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
