// Runs another program and waits for it, with a signal to this process passed on. One at a time.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace protrain {

// stdout and stderr of the child go line by line to `line` (calling thread). Returns its exit status (128 + n when
// signal n ended it). When this process is signalled the child and its children get the same signal (SIGTERM for
// SIGHUP) and Interrupted is
// thrown after it has ended; when this process dies, the child gets SIGTERM. Error(kInternal) when it cannot be
// started.
int run_child(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment,
              const std::function<void(const std::string&)>& line);

}  // namespace protrain
