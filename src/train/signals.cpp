#include "train/signals.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace protrain {
namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;
constexpr std::int64_t kEcho = kNanoseconds;  // one more signal within this counts as the same one

std::atomic<int> g_signal{0};
std::atomic<std::int64_t> g_first{0};  // when, on the monotonic clock
std::atomic<int> g_tell_on{-1};
std::atomic<bool> g_will_save{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

// The functions below run inside the handler: async-signal-safe calls only.

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kNanoseconds + time.tv_nsec;
}

void tell(int signal, const char* what) {
  const int descriptor = g_tell_on.load();
  if (descriptor < 0) return;
  char line[200];
  std::size_t size = 0;
  for (const char* part : {"\nprotrain: ", signal_name(signal), what}) {
    const std::size_t length = std::min(std::strlen(part), sizeof line - size);
    std::memcpy(line + size, part, length);
    size += length;
  }
  // A bar on the terminal leaves its line open; elsewhere lines are whole.
  const std::size_t skip = isatty(descriptor) == 1 ? 0 : 1;
  // One call, so that the line stays whole; if it fails there is nobody to tell.
  if (write(descriptor, line + skip, size - skip) < 0) return;
}

void on_signal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  if (g_signal.compare_exchange_strong(none, signal)) {
    g_first = now();
    tell(signal, g_will_save ? ": stopping, a checkpoint will be saved; once more to end at once\n"
                             : ": stopping, there is nothing to save; once more to end at once\n");
  } else if (now() - g_first.load() >= kEcho) {
    tell(signal, " again: ending at once; the last checkpoint stays\n");
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // delivered when this handler returns
  } else {
    tell(signal, " again within a second: taken as one; once more to end at once\n");
  }
  errno = saved_errno;
}

}  // namespace

SignalScope::SignalScope(int tell_on) {
  g_signal = 0;
  g_will_save = false;
  g_tell_on = tell_on;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &old_[i]);
    if (kSignals[i] == SIGHUP && old_[i].sa_handler == SIG_IGN) sigaction(SIGHUP, &old_[i], nullptr);
  }
}

SignalScope::~SignalScope() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
  g_tell_on = -1;
  g_signal = 0;
}

void announce_checkpoint(bool saved) { g_will_save = saved; }

int signal_received() { return g_signal.load(); }

void stop_if_signalled() {
  if (const int signal = signal_received()) throw Interrupted(signal);
}

const char* signal_name(int signal) { return signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM"; }

}  // namespace protrain
