// SIGTERM and SIGINT as a flag that the loop, evaluation and long waits ask. A second signal ends the process at once.
#pragma once
#include <signal.h>

#include <stdexcept>

namespace protrain {

// Installs the handlers while it lives; one at a time.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  struct sigaction old_term_ = {}, old_int_ = {};
};

// SIGTERM, SIGINT or 0. Any thread.
int signal_received();

// Thrown by work that stopped for a signal and has nothing of its own to save.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(int signal) : std::runtime_error("interrupted"), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

}  // namespace protrain
