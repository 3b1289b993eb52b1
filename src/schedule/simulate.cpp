#include "schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "schedule/recent_load.h"

namespace protrain {

namespace {

// A fluid model: between two events (a task ends, others begin) every working lane proceeds at a constant rate. A lane
// keeps the time at which its task ends at the present rate, and only a change of its rate touches that time; so where
// nothing slows anything down, ends are plain sums.
class Lanes {
 public:
  Lanes(const Schedule& schedule, std::span<const TaskTime> times, const Rates& rates, double load)
      : tasks_(schedule.tasks),
        times_(times),
        rates_(rates),
        ended_(tasks_.size(), 0),
        spans_(tasks_.size()),
        load_(load) {
    PROTRAIN_CHECK(times.size() == tasks_.size(), "{} times for {} tasks", times.size(), tasks_.size());
    std::array<std::size_t, kLanes> counts{};
    for (const Task& task : tasks_) ++counts[static_cast<std::size_t>(task.lane)];
    std::size_t begin = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes_[lane].next = begin;
      begin += counts[lane];
      lanes_[lane].last = begin;
    }
    queue_.resize(tasks_.size());
    std::array<std::size_t, kLanes> at{};
    for (std::size_t lane = 0; lane < kLanes; ++lane) at[lane] = lanes_[lane].next;
    for (std::size_t id = 0; id < tasks_.size(); ++id) {
      const auto& [steady, rested] = times[id];
      PROTRAIN_CHECK(std::isfinite(steady) && rested >= 0 && rested <= steady, "{} takes {} s, or {} s",
                     tasks_[id].name, steady, rested);
      queue_[at[static_cast<std::size_t>(tasks_[id].lane)]++] = static_cast<Id>(id);
    }
  }

  Timeline run() {
    std::size_t left = tasks_.size();
    while (left > 0) {
      start();
      double end = std::numeric_limits<double>::infinity();
      for (const Of& lane : lanes_) {
        if (lane.works) end = std::min(end, lane.end);
      }
      PROTRAIN_CHECK(std::isfinite(end), "{} tasks wait for each other", left);
      now_ = end;
      for (Of& lane : lanes_) {
        if (!lane.works || lane.end > now_) continue;
        finish(lane);
        --left;
      }
    }
    return {std::move(spans_), now_};
  }

 private:
  struct Of {
    std::size_t next = 0, last = 0;  // of queue_: its task or the next one, and where its tasks end
    std::size_t waited = 0;          // of the next one's `after`: so many have ended
    bool works = false;
    double slowed = 1;  // its present task's time per second alone
    double end = 0;
  };

  // Begins every task that can; then all rates hold until the next event.
  void start() {
    for (Of& lane : lanes_) {
      if (lane.works || lane.next == lane.last) continue;
      const Id id = queue_[lane.next];
      const std::vector<Id>& after = tasks_[id].after;
      while (lane.waited < after.size() && ended_[static_cast<std::size_t>(after[lane.waited])] != 0) ++lane.waited;
      if (lane.waited < after.size()) continue;
      lane.works = true;
      lane.slowed = 1;
      lane.end = now_ + seconds_of(id);
      spans_[id] = {id, tasks_[id].lane, now_, 0};
    }
    for (std::size_t a = 0; a < kLanes; ++a) {
      Of& lane = lanes_[a];
      if (!lane.works) continue;
      double slowed = 1;
      for (std::size_t b = 0; b < kLanes; ++b) {
        if (b != a && lanes_[b].works) slowed *= rates_.slowdown[a][b];
      }
      if (slowed == lane.slowed) continue;
      lane.end = now_ + (lane.end - now_) / lane.slowed * slowed;
      lane.slowed = slowed;
    }
  }

  double seconds_of(Id id) {
    const auto& [steady, rested] = times_[id];
    if (tasks_[id].lane != Lane::kCompute) return steady;
    load_.rest(now_ - compute_ended_);
    return rested + load_.steady_share(steady) * (steady - rested);
  }

  void finish(Of& lane) {
    const Id id = queue_[lane.next++];
    spans_[id].end_seconds = now_;
    if (tasks_[id].lane == Lane::kCompute) {
      load_.work(now_ - spans_[id].begin_seconds);
      compute_ended_ = now_;
    }
    ended_[static_cast<std::size_t>(id)] = 1;
    lane.works = false;
    lane.waited = 0;
  }

  const std::vector<Task>& tasks_;
  const std::span<const TaskTime> times_;
  const Rates& rates_;
  std::vector<char> ended_;  // by task
  std::vector<Id> queue_;    // tasks by lane, each lane's in order
  std::array<Of, kLanes> lanes_;
  std::vector<Span> spans_;
  RecentLoad load_;  // when the compute lane last ended a task
  double compute_ended_ = 0;
  double now_ = 0;
};

}  // namespace

Timeline simulate(const Schedule& schedule, std::span<const TaskTime> times, const Rates& rates, double load) {
  for (const auto& row : rates.slowdown) {
    for (const double factor : row) {
      PROTRAIN_CHECK(std::isfinite(factor) && factor > 0, "{}: a slowdown of {}", rates.source, factor);
    }
  }
  return Lanes(schedule, times, rates, load).run();
}

}  // namespace protrain
