// SIGTERM, SIGINT and SIGHUP as a flag that the loop, evaluation and long waits ask. The first signal is acknowledged
// at once; one more ends the process at once, unless it comes within a second (launchers and terminals send twice).
#pragma once
#include <signal.h>

#include <array>
#include <stdexcept>

namespace protrain {

// Installs the handlers while it lives; one at a time. Lines about signals go to the descriptor `tell_on`, straight
// from the handler, as the loop may be busy for long; -1 is silent. A SIGHUP that is ignored (nohup) stays so.
class SignalScope {
 public:
  explicit SignalScope(int tell_on = -1);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGTERM, SIGINT, SIGHUP};
  std::array<struct sigaction, kSignals.size()> old_ = {};
};

// SIGTERM, SIGINT, SIGHUP or 0. Any thread.
// Whether a run that is stopped now will have something to save: what the first signal's line says. Off in a new scope.
void announce_checkpoint(bool saved);
int signal_received();
const char* signal_name(int signal);  // of those three

// Thrown by work that stopped for a signal and has nothing of its own to save.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(int signal) : std::runtime_error("interrupted"), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// Throws Interrupted once a signal has come.
void stop_if_signalled();

}  // namespace protrain
