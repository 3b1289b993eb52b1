#include "schedule/order.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace protrain {

void Clock::include(const Clock& other) {
  for (std::size_t lane = 0; lane < latest_.size(); ++lane)
    latest_[lane] = std::max(latest_[lane], other.latest_[lane]);
}

Clock Clocks::start(Lane lane) const {
  const Id last = last_[static_cast<std::size_t>(lane)];
  return last < 0 ? Clock() : clocks_[last];
}

void Clocks::append(Lane lane, Clock clock) {
  const auto id = static_cast<Id>(clocks_.size());
  clock.set(lane, id);
  clocks_.push_back(clock);
  last_[static_cast<std::size_t>(lane)] = id;
}

std::vector<Access> effective_accesses(const Task& task) {
  std::vector<Access> result;
  for (const auto* lives : {&task.acquires, &task.releases}) {
    for (const Range& range : *lives) {
      const Access access{range, true, false};
      const auto same = [&](const Access& other) { return other.range == range; };
      if (std::none_of(result.begin(), result.end(), same)) result.push_back(access);
    }
  }
  const std::size_t whole = result.size();
  for (const Access& access : task.access) {
    const bool covered =
        std::any_of(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(whole), [&](const Access& all) {
          return all.range.tier == access.range.tier && all.range.offset <= access.range.offset &&
                 access.range.offset + access.range.bytes <= all.range.offset + all.range.bytes;
        });
    if (!covered) result.push_back(access);
  }
  return result;
}

AccessHistory::Stretch AccessHistory::untouched(Bytes end) {
  Stretch stretch;
  stretch.end = end;
  stretch.read.fill(-1);
  return stretch;
}

AccessHistory::Stretches::iterator AccessHistory::at(Stretches& stretches, Bytes byte) const {
  auto next = stretches.upper_bound(byte);
  if (next != stretches.begin()) {
    const auto before = std::prev(next);
    if (before->second.end > byte) return before;
  }
  return next;
}

void AccessHistory::conflicts(const Access& access, Earlier& earlier) {
  const Range& range = access.range;
  PROTRAIN_CHECK(range.offset >= 0 && range.bytes > 0, "a task touches {} bytes at {}", range.bytes, range.offset);
  Stretches& stretches = tiers_.at(static_cast<std::size_t>(range.tier));
  const Bytes end = range.offset + range.bytes;
  for (auto it = at(stretches, range.offset); it != stretches.end() && it->first < end; ++it) {
    const Stretch& stretch = it->second;
    if (stretch.writer >= 0) {
      Id& latest = earlier[static_cast<std::size_t>(stretch.writer_lane)];
      latest = std::max(latest, stretch.writer);
    }
    if (!access.writes) continue;
    for (std::size_t lane = 0; lane < earlier.size(); ++lane)
      earlier[lane] = std::max(earlier[lane], stretch.read[lane]);
  }
}

void AccessHistory::record(const Access& access, Lane lane, Id task) {
  Stretches& stretches = tiers_.at(static_cast<std::size_t>(access.range.tier));
  const Bytes begin = access.range.offset;
  const Bytes end = begin + access.range.bytes;
  cut(stretches, begin, end);
  if (access.writes) {
    stretches.erase(stretches.lower_bound(begin), stretches.lower_bound(end));
    Stretch written = untouched(end);
    written.writer = task;
    written.writer_lane = lane;
    stretches.emplace(begin, written);
    return;
  }
  Bytes next = begin;
  for (auto it = stretches.lower_bound(begin); next < end; ++it) {
    if (it == stretches.end() || it->first > next) {  // a gap
      const Bytes until = it == stretches.end() ? end : std::min(end, it->first);
      it = stretches.emplace_hint(it, next, untouched(until));
    }
    it->second.read[static_cast<std::size_t>(lane)] = task;
    next = it->second.end;
  }
}

void AccessHistory::cut(Stretches& stretches, Bytes begin, Bytes end) {
  for (const Bytes byte : {begin, end}) {
    const auto holder = at(stretches, byte);
    if (holder == stretches.end() || holder->first >= byte) continue;
    const Stretch rest = holder->second;
    holder->second.end = byte;
    stretches.emplace_hint(std::next(holder), byte, rest);
  }
}

}  // namespace protrain
