#include "base/log.h"

#include <mutex>

namespace protrain::log {
namespace {

struct Target {
  std::mutex mutex;
  Sink sink;
};

// Never destroyed: threads may log while the process ends.
Target& target() {
  static Target* const target = new Target;
  return *target;
}

}  // namespace

void set_sink(Sink sink) {
  const std::lock_guard lock(target().mutex);
  target().sink = std::move(sink);
}

void write(Level level, const std::string& line) {
  const std::lock_guard lock(target().mutex);
  if (target().sink) target().sink(level, line);
}

}  // namespace protrain::log
