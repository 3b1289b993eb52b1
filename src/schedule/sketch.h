// The tasks of a graph with the regions that they touch, and the lives of these regions: what layout() packs and what
// expand() hands out as acquires and releases. Internal to schedule/.
#pragma once
#include <vector>

#include "schedule/schedule.h"

namespace protrain {

// Bytes [offset, offset + bytes) of an entry of the layout. 0 bytes: the region lives here, the task leaves it alone.
struct Touch {
  std::size_t entry = 0;  // Layout::entries
  Bytes offset = 0;
  Bytes bytes = 0;
  bool writes = false;
  bool fresh = false;
};

// From the first of these tasks to the last.
struct Life {
  std::size_t entry = 0;
  Id first = -1, last = -1;
};

class Sketch {
 public:
  // The layout outlives it; addresses in it matter to finish() only.
  explicit Sketch(const Layout&);

  // Appends the task and its touches as Task::access (those with bytes). A touch of a region that lives while it is
  // needed begins a life if fresh, else continues the one there is (InternalError when there is none).
  Id add(Task, const std::vector<Touch>&);
  const std::vector<Life>& lives() const { return lives_; }
  Id size() const { return static_cast<Id>(tasks_.size()); }
  // Fills acquires, releases and the edges.
  std::vector<Task> finish();

 private:
  const Layout& layout_;
  std::vector<Task> tasks_;
  std::vector<Life> lives_;
  std::vector<std::int64_t> open_;  // by entry: its present life; -1
};

}  // namespace protrain
