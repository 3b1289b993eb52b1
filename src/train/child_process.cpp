#include "train/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "train/signals.h"

extern char** environ;

namespace protrain {
namespace {

constexpr int kPollMilliseconds = 100;  // how soon a signal is passed on

// Arrays of C strings that execve wants; the strings stay owned by the vector.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> child_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!changes.contains(text.substr(0, text.find('=')))) out.push_back(text);
  }
  for (const auto& [name, value] : changes) out.push_back(name + "=" + value);
  return out;
}

}  // namespace

int run_child(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment,
              const std::function<void(const std::string&)>& line) {
  // Everything is allocated before fork: between fork and exec only async-signal-safe calls are allowed.
  std::vector<std::string> words = command;
  std::vector<std::string> variables = child_environment(environment);
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(variables);

  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) fail(ExitCode::kInternal, "pipe: {}", std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    const int error = errno;
    close(output[0]);
    close(output[1]);
    fail(ExitCode::kInternal, "cannot start {}: {}", command[0], std::strerror(error));
  }
  if (child == 0) {
    setpgid(0, 0);  // a Ctrl-C reaches it through us alone, so that it is signalled once
    // It must not outlive us, whatever ends us; nor if that happened already.
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent) _exit(126);
    dup2(output[1], STDOUT_FILENO);
    dup2(output[1], STDERR_FILENO);
    execvpe(argv[0], argv.data(), envp.data());
    constexpr char kMessage[] = "cannot be executed\n";
    if (write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) _exit(126);
    _exit(127);
  }
  close(output[1]);
  setpgid(child, child);  // here too: whoever comes first

  std::string pending;
  std::array<char, 4096> buffer{};
  bool passed_on = false;
  while (true) {
    if (const int signal = signal_received(); signal != 0 && !passed_on) {
      kill(-child, signal == SIGHUP ? SIGTERM : signal);  // its own children too
      passed_on = true;
    }
    pollfd waiting{output[0], POLLIN, 0};
    const int ready = poll(&waiting, 1, kPollMilliseconds);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t count = read(output[0], buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    pending.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      line(pending.substr(0, end));
    }
  }
  if (!pending.empty()) line(pending);
  close(output[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (passed_on) throw Interrupted(signal_received());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace protrain
