#include "schedule/sketch.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "schedule/builder.h"

namespace protrain {

Sketch::Sketch(const Layout& layout) : layout_(layout), open_(layout.entries.size(), -1) {}

Id Sketch::add(Task task, const std::vector<Touch>& touches) {
  const Id id = size();
  for (const Touch& touch : touches) {
    const Layout::Entry& entry = layout_.entries.at(touch.entry);
    PROTRAIN_CHECK(touch.offset >= 0 && touch.bytes >= 0 && touch.offset + touch.bytes <= entry.range.bytes,
                   "{}: bytes {} to {} of {} {}, which has {}", task.name, touch.offset, touch.offset + touch.bytes,
                   region_name(entry.region), entry.index, entry.range.bytes);
    if (touch.bytes > 0) {
      const Range range{entry.range.tier, entry.range.offset + touch.offset, touch.bytes};
      task.access.push_back({range, touch.writes, touch.fresh});
    }
    if (entry.whole_run) continue;
    std::int64_t& open = open_[touch.entry];
    if (touch.fresh) {
      open = static_cast<std::int64_t>(lives_.size());
      lives_.push_back({touch.entry, id, id});
    }
    PROTRAIN_CHECK(open >= 0, "{} reads {} {}, which nothing has written", task.name, region_name(entry.region),
                   entry.index);
    lives_[open].last = id;
  }
  tasks_.push_back(std::move(task));
  return id;
}

std::vector<Task> Sketch::finish() {
  for (const Life& life : lives_) {
    const Range& range = layout_.entries[life.entry].range;
    tasks_[life.first].acquires.push_back(range);
    tasks_[life.last].releases.push_back(range);
  }
  ScheduleBuilder builder;
  for (Task& task : tasks_) builder.add(std::move(task));
  tasks_.clear();
  return builder.take().tasks;
}

}  // namespace protrain
