#include "runtime/executor_lives.h"

#include "base/error.h"

namespace protrain {

Arena* Lives::arena(const Range& range) const {
  return range.bytes > 0 ? arenas_.at(static_cast<std::size_t>(range.tier)) : nullptr;
}

void Lives::begin(const Task& task, Stream& stream) {
  for (const Range& range : task.acquires) {
    Arena* const own = arena(range);
    if (own == nullptr) continue;
    own->acquire(range, task.name, &stream);
    const std::lock_guard lock(mutex_);
    const bool fresh = live_.emplace(Key(range.tier, range.offset), Life{range, task.name}).second;
    PROTRAIN_CHECK(fresh, "{} acquires offset {} of tier {}, which is in use", task.name, range.offset,
                   static_cast<int>(range.tier));
  }
}

void Lives::end(const Task& task, Stream& stream) {
  for (const Range& range : task.releases) {
    Arena* const own = arena(range);
    if (own == nullptr) continue;
    {
      const std::lock_guard lock(mutex_);
      const auto found = live_.find({range.tier, range.offset});
      PROTRAIN_CHECK(found != live_.end() && found->second.range == range,
                     "{} releases {} bytes at {} of tier {}, which no task has acquired", task.name, range.bytes,
                     range.offset, static_cast<int>(range.tier));
      live_.erase(found);
    }
    own->release(range, &stream);
  }
}

std::string_view Lives::end_all() {
  const std::lock_guard lock(mutex_);
  const std::string_view name = live_.empty() ? std::string_view() : live_.begin()->second.name;
  for (const auto& [key, life] : live_) arena(life.range)->release(life.range);
  live_.clear();
  return name;
}

}  // namespace protrain
