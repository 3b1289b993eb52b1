#include "schedule/order.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace protrain {

void Clock::include(const Clock& other) {
  for (std::size_t lane = 0; lane < latest_.size(); ++lane)
    latest_[lane] = std::max(latest_[lane], other.latest_[lane]);
}

Clock Order::start(Lane lane) const {
  const Id last = last_[static_cast<std::size_t>(lane)];
  return last < 0 ? Clock() : clocks_[last];
}

void Order::append(Lane lane, Clock clock) {
  const auto id = static_cast<Id>(clocks_.size());
  clock.set(lane, id);
  clocks_.push_back(clock);
  last_[static_cast<std::size_t>(lane)] = id;
}

std::vector<AccessHistory::Conflict> AccessHistory::conflicts(const Access& access) {
  std::vector<Conflict> found;
  const auto [first, last] = cut(access.range);
  for (auto stretch = first; stretch != last; ++stretch) {
    for (int lane = 0; lane < kLanes; ++lane) {
      Id task = stretch->second.written[lane];
      if (access.writes) task = std::max(task, stretch->second.read[lane]);
      if (task < 0) continue;
      found.push_back(
          {task, static_cast<Lane>(lane), {access.range.tier, stretch->first, stretch->second.end - stretch->first}});
    }
  }
  return found;
}

void AccessHistory::record(const Access& access, Lane lane, Id task) {
  const auto [first, last] = cut(access.range);
  for (auto stretch = first; stretch != last; ++stretch) {
    auto& touched = access.writes ? stretch->second.written : stretch->second.read;
    touched[static_cast<std::size_t>(lane)] = task;
  }
}

std::pair<AccessHistory::Stretches::iterator, AccessHistory::Stretches::iterator> AccessHistory::cut(
    const Range& range) {
  PROTRAIN_CHECK(range.offset >= 0 && range.bytes > 0, "a task touches {} bytes at {}", range.bytes, range.offset);
  Stretches& stretches = tiers_.at(static_cast<std::size_t>(range.tier));
  const Bytes end = range.offset + range.bytes;

  const auto split_at = [&](Bytes at) {
    auto next = stretches.upper_bound(at);
    if (next == stretches.begin()) return;
    const auto holder = std::prev(next);
    if (holder->first == at || holder->second.end <= at) return;
    Stretch rest = holder->second;
    holder->second.end = at;
    stretches.emplace_hint(next, at, rest);
  };
  split_at(range.offset);
  split_at(end);

  Bytes at = range.offset;
  for (auto it = stretches.lower_bound(at); at < end; ++it) {
    if (it == stretches.end() || it->first > at) {
      Stretch fresh;
      fresh.end = it == stretches.end() ? end : std::min(end, it->first);
      fresh.read.fill(-1);
      fresh.written.fill(-1);
      it = stretches.emplace_hint(it, at, fresh);
    }
    at = it->second.end;
  }
  return {stretches.lower_bound(range.offset), stretches.lower_bound(end)};
}

}  // namespace protrain
