#include "profile/overlap.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/seconds_since.h"

namespace protrain::profile {
namespace {

constexpr std::size_t kAhead = 3;  // pieces that the host may be ahead of the device
constexpr double kPatience = 20;   // windows that one piece of the other lane may take

// One lane at work: an event before the first piece and after each.
class Working {
 public:
  explicit Working(const LaneLoad& load) : load_(load) {}

  // Until enough(pieces completed) is true.
  template <typename Enough>
  void run(const Enough& enough) {
    marks_.push_back(load_.stream->record());
    while (!enough(completed_.load())) {
      load_.work(*load_.stream);
      marks_.push_back(load_.stream->record());
      std::size_t done = static_cast<std::size_t>(completed_.load());
      if (marks_.size() > done + 1 + kAhead) marks_[++done].wait();
      while (done + 1 < marks_.size() && marks_[done + 1].ready()) ++done;
      completed_ = static_cast<int>(done);
    }
    load_.stream->synchronize();
  }
  int completed() const { return completed_; }

  // Seconds of each mark on the device's clock, from the first mark of `origin`.
  std::vector<double> times(const Device& device, const Working& origin) const {
    std::vector<double> times;
    times.reserve(marks_.size());
    for (const Event& mark : marks_) times.push_back(device.seconds_between(origin.marks_.front(), mark));
    return times;
  }

 private:
  const LaneLoad& load_;
  std::vector<Event> marks_;
  std::atomic<int> completed_ = 0;
};

// Seconds of a piece within [begin, end]: of the whole pieces inside, else of all.
double per_piece(const std::vector<double>& times, double begin, double end) {
  const auto first = std::lower_bound(times.begin(), times.end(), begin);
  const auto last = std::upper_bound(times.begin(), times.end(), end);
  if (last - first >= 2) return (*(last - 1) - *first) / static_cast<double>(last - first - 1);
  return (times.back() - times.front()) / static_cast<double>(times.size() - 1);
}

double alone(const Device& device, const LaneLoad& load, const OverlapPace& pace) {
  Working working(load);
  const Clock::time_point begin = Clock::now();
  working.run([&](int completed) { return completed >= 1 && seconds_since(begin) >= pace.settle + pace.window; });
  const std::vector<double> times = working.times(device, working);
  return per_piece(times, std::min(pace.settle, times.back()), times.back());
}

// `here` runs on the calling thread.
std::pair<double, double> together(const Device& device, const LaneLoad& here, const LaneLoad& there,
                                   const OverlapPace& pace) {
  Working mine(here), other(there);
  std::atomic<bool> stop = false;
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      other.run([&](int) { return stop.load(); });
    } catch (...) {
      failure = std::current_exception();
    }
  });
  try {
    const Clock::time_point begin = Clock::now();
    const double length = pace.settle + pace.window;
    mine.run([&](int completed) {
      const double passed = seconds_since(begin);
      return passed >= length && completed >= 1 && (other.completed() >= 1 || passed >= kPatience * length);
    });
  } catch (...) {
    stop = true;
    thread.join();
    throw;
  }
  stop = true;
  thread.join();
  if (failure) std::rethrow_exception(failure);

  const std::vector<double> times = mine.times(device, mine), others = other.times(device, mine);
  PROTRAIN_CHECK(times.size() >= 2);
  const double end = std::min(times.back(), others.back());
  const double begin = std::min(std::max(times.front(), others.front()) + pace.settle, end);
  return {per_piece(times, begin, end), others.size() < 2 ? 0 : per_piece(others, begin, end)};
}

}  // namespace

int windows(const std::vector<LaneLoad>& loads) {
  const auto count = static_cast<int>(loads.size());
  const auto drifting = static_cast<int>(std::ranges::count(loads, true, &LaneLoad::drifts));
  return count * (count - 1) / 2 + (count - drifting) + drifting * (count - 1);
}

std::array<std::array<double, kLanes>, kLanes> slowdowns(const Device& device, const std::vector<LaneLoad>& loads,
                                                         const OverlapPace& pace) {
  auto result = Rates::no_slowdown();
  std::vector<double> solo;
  for (const LaneLoad& load : loads) solo.push_back(load.drifts ? 0 : alone(device, load, pace));
  bool warm = false;
  const auto renew = [&](std::size_t i) {
    if (!loads[i].drifts) return;
    OverlapPace own = pace;
    if (!loads[i].own_thread && !std::exchange(warm, true)) own.settle += pace.warm;
    solo[i] = alone(device, loads[i], own);
  };
  for (std::size_t a = 0; a < loads.size(); ++a) {
    for (std::size_t b = a + 1; b < loads.size(); ++b) {
      renew(a);
      renew(b);
      const bool swap = !loads[b].own_thread;
      const auto both = together(device, loads[swap ? b : a], loads[swap ? a : b], pace);
      const auto [of_a, of_b] = swap ? std::pair(both.second, both.first) : both;
      const auto lane_a = static_cast<std::size_t>(loads[a].lane), lane_b = static_cast<std::size_t>(loads[b].lane);
      result[lane_a][lane_b] = std::max(1.0, of_a / solo[a]);
      result[lane_b][lane_a] = std::max(1.0, of_b / solo[b]);
    }
  }
  return result;
}

}  // namespace protrain::profile
