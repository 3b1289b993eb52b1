// The ranges that a run's tasks have begun to use and not yet ended: Task::acquires and Task::releases, told to the
// arenas. Internal to Executor.
//
// Both count as writes of the range, so the graph orders the lives that share bytes: the next begins when the thread of
// its task has seen the end of the last one issued, and its poison comes and goes in the order of the streams.
//
// Thread safety: all methods, any thread.
#pragma once
#include <map>
#include <mutex>
#include <utility>

#include "memory/arena.h"
#include "schedule/schedule.h"

namespace protrain {

class Lives {
 public:
  explicit Lives(const Arenas& arenas) : arenas_(arenas) {}

  void begin(const Task&, Stream&);  // before its work is issued
  void end(const Task&, Stream&);    // behind its work, before others may see it as issued
  // Ends what a run has left, when all of its work has ended; the name of a task that began some of it, or "".
  std::string_view end_all();

 private:
  struct Life {
    Range range;
    std::string_view name;  // of the task that began it
  };
  using Key = std::pair<Tier, Bytes>;  // its offset

  Arena* arena(const Range&) const;  // null: not kept

  const Arenas arenas_;
  std::mutex mutex_;
  std::map<Key, Life> live_;
};

}  // namespace protrain
