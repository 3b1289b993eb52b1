#include "profile/call_times.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/seconds_since.h"
#include "profile/stopwatch.h"

namespace protrain::profile {
namespace {

// The first round on a GPU may wait for the host, which is not ahead of it yet; on the CPU it touches fresh pages.
constexpr int kFewestOnGpu = 3, kFewestOnCpu = 2;
// Seconds that the first round takes for one less to do.
constexpr double kLongOnGpu = 1.0, kLongOnCpu = 0.5;
constexpr std::size_t kAhead = 4;  // pieces of load that the host is ahead of the device
constexpr double kShortest = 1e-9;
constexpr double kLayerWeight = 8;          // of a layer's calls among those of embedding and head
constexpr double kEvaluationWeight = 0.25;  // of a shape that is evaluated alone

// The times of one call: a value a round.
struct Samples {
  RigCall call;
  std::vector<double> steady, rested;
};

class Timer {
 public:
  Timer(const RigModel& model, const Device& device, Stream& stream, const CallPace& pace,
        std::vector<Samples>& samples)
      : model_(model), device_(device), stream_(stream), pace_(pace), samples_(samples) {}

  // Room for the busiest block beside any other: it stays, and heats the device.
  void keep_heater() { heater_.emplace(model_, busiest_kind(model_), device_.kind(), stream_); }

  void steady(const RigKind& kind, double settle, double seconds) {
    each(kind, [&](BlockRig& rig) {
      heat(rig, warmed_ ? settle : pace_.warm);
      warmed_ = true;
      rounds(rig, seconds);
    });
  }

  void rested(const RigKind& kind, double seconds) {
    each(kind, [&](BlockRig& rig) {
      const Clock::time_point begin = Clock::now();
      while (!cooled_ && seconds_since(begin) < pace_.cool) rest_round(rig, false);
      cooled_ = true;
      const Clock::time_point timed = Clock::now();
      for (int round = 0; more(round, seconds_since(timed), seconds); ++round) rest_round(rig, true);
    });
  }

 private:
  // A rig for the kind; the heater itself where it is that.
  template <typename Do>
  void each(const RigKind& kind, const Do& action) {
    if (heater_ && heater_->kind() == kind) {
      action(*heater_);
    } else {
      {
        BlockRig rig(model_, kind, device_.kind(), stream_);
        action(rig);
        stream_.synchronize();
      }
      give_back(model_, device_.kind());
    }
  }

  bool more(int round, double passed, double seconds) const {
    const bool gpu = pace_.duty_cycles;
    const int fewest = (gpu ? kFewestOnGpu : kFewestOnCpu) - (passed > (gpu ? kLongOnGpu : kLongOnCpu) ? 1 : 0);
    return round < fewest || (round < pace_.rounds && passed < seconds);
  }

  // Load for about so long of the device's time, at least one piece; the host ends at most kAhead pieces before it.
  void heat(BlockRig& rig, double seconds) {
    BlockRig& source = heater_ ? *heater_ : rig;
    if (heat_seconds_ == 0 || !heater_) {
      if (heat_seconds_ == 0) pass(source);  // libraries make their workspaces
      const Event before = stream_.record();
      pass(source);
      const Event after = stream_.record();
      after.wait();
      heat_seconds_ = std::max(device_.seconds_between(before, after), kShortest);
    }
    const int times = static_cast<int>(std::clamp(seconds / heat_seconds_, 1.0, 10000.0));
    std::deque<Event> ahead;
    for (int i = 0; i < times; ++i) {
      pass(source);
      ahead.push_back(stream_.record());
      if (ahead.size() <= kAhead) continue;
      ahead.front().wait();
      ahead.pop_front();
    }
  }
  void pass(BlockRig& rig) {
    if (heater_) {
      rig.forward_backward();
      return;
    }
    for (const RigCall& call : rig.calls()) rig.run(call);
    rig.next_micro_batch();
  }

  // All calls of the kind, over and over, never waiting for the round that was just issued.
  void rounds(BlockRig& rig, double seconds) {
    std::vector<std::vector<Event>> marks;
    const Clock::time_point begin = Clock::now();
    for (int round = 0; more(round, seconds_since(begin), seconds); ++round) {
      if (pace_.heat > 0 && heater_ && &rig != &*heater_) heat(rig, pace_.heat);
      std::vector<Event>& own = marks.emplace_back();
      own.push_back(stream_.record());
      for (const RigCall& call : rig.calls()) {
        rig.run(call);
        own.push_back(stream_.record());
      }
      rig.next_micro_batch();
      if (round > 0) marks[static_cast<std::size_t>(round) - 1].back().wait();
    }
    stream_.synchronize();
    for (const std::vector<Event>& own : marks) {
      for (std::size_t i = 0; i < rig.calls().size(); ++i) {
        sample(rig.calls()[i]).steady.push_back(device_.seconds_between(own[i], own[i + 1]));
      }
    }
  }

  void rest_round(BlockRig& rig, bool counts) {
    const std::vector<RigCall>& calls = rig.calls();
    for (std::size_t i = 0; i < calls.size();) {
      const std::size_t first = i;
      std::vector<Event> marks = {stream_.record()};
      do {
        rig.run(calls[i]);
        marks.push_back(stream_.record());
      } while (is_followed_by_its_backward(calls[i++]));
      marks.back().wait();
      for (std::size_t k = first; counts && k < i; ++k) {
        sample(calls[k]).rested.push_back(device_.seconds_between(marks[k - first], marks[k - first + 1]));
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(device_.seconds_between(marks.front(), marks.back())));
    }
    rig.next_micro_batch();
  }

  static bool is_followed_by_its_backward(const RigCall& call) {
    return call.key.pass == Pass::kForwardKeep && call.result;
  }

  Samples& sample(const RigCall& call) {
    const auto found = std::ranges::find(samples_, call, &Samples::call);
    if (found != samples_.end()) return *found;
    return samples_.emplace_back(Samples{call, {}, {}});
  }

  const RigModel& model_;
  const Device& device_;
  Stream& stream_;
  const CallPace& pace_;
  std::vector<Samples>& samples_;
  std::optional<BlockRig> heater_;
  double heat_seconds_ = 0;  // of one piece of load
  bool warmed_ = false, cooled_ = false;
};

}  // namespace

std::vector<double> time_shares(const RigModel& model, const std::vector<RigKind>& kinds) {
  std::vector<double> shares;
  double sum = 0;
  for (const RigKind& kind : kinds) {
    const bool layer = model.spec.blocks.at(static_cast<std::size_t>(kind.block)).kind == BlockKind::kLayer;
    const auto& trained = model.shape.train_shapes;
    const bool evaluates = std::ranges::find(trained, kind.shape) == trained.end();
    shares.push_back((layer ? kLayerWeight : 1) * (evaluates ? kEvaluationWeight : 1) *
                     static_cast<double>(kind.shape.tokens()));
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

std::vector<Rates::Call> call_times(const RigModel& model, const Device& device, Stream& stream, Bytes budget,
                                    const CallPace& pace, std::span<const Rates::Call> known,
                                    const std::function<void(const std::string&)>& progress) {
  const auto is_known = [&](const CallKey& key) { return std::ranges::find(known, key, &Rates::Call::key); };
  std::vector<RigKind> kinds = rig_kinds(model);
  std::erase_if(kinds, [&](const RigKind& kind) {
    const std::string& trace = model.spec.blocks.at(static_cast<std::size_t>(kind.block)).trace;
    return std::ranges::all_of(model.memory.calls, [&](const Profile::Call& call) {
      return call.key.trace != trace || call.key.shape != kind.shape || is_known(call.key) != known.end();
    });
  });
  std::vector<Samples> samples;
  if (!kinds.empty()) {
    const std::vector<double> shares = time_shares(model, kinds);
    Timer timer(model, device, stream, pace, samples);
    Bytes largest = 0;
    for (const RigKind& kind : kinds) largest = std::max(largest, rig_bytes(model, kind));
    if (pace.duty_cycles && largest + rig_bytes(model, busiest_kind(model)) <= budget) timer.keep_heater();
    progress(fmt::format("timing calls of {} kinds of blocks and shapes{}", kinds.size(),
                         pace.duty_cycles ? " under steady load" : ""));
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      timer.steady(kinds[i], pace.settle * shares[i], pace.steady * shares[i]);
    }
    if (pace.duty_cycles) {
      progress("timing the same with pauses");
      for (std::size_t i = 0; i < kinds.size(); ++i) timer.rested(kinds[i], pace.rested * shares[i]);
    }
  }

  std::vector<Rates::Call> calls;
  for (const Profile::Call& call : model.memory.calls) {
    if (const auto before = is_known(call.key); before != known.end()) {
      calls.push_back(*before);
      continue;
    }
    CallKey key = call.key;
    const auto of = [&](const CallKey& wanted, bool result = true) {
      return std::ranges::find(samples, RigCall{wanted, result}, &Samples::call);
    };
    auto found = of(key);
    if (found == samples.end() && key.pass == Pass::kForwardKeep) {  // an embedding's
      key.pass = Pass::kForward;
      found = of(key);
    }
    PROTRAIN_CHECK(found != samples.end(), "a call of \"{}\" was not timed", key.trace);
    const double steady = std::max(median(found->steady), kShortest);
    const double rested = found->rested.empty() ? steady : std::max(median(found->rested), kShortest);
    const auto alone = of(key, /*result=*/false);
    const double graph_alone =
        alone == samples.end() ? 1 : std::min(std::max(median(alone->steady), kShortest) / steady, 1.0);
    calls.push_back({call.key, steady, std::min(steady, rested), graph_alone});
  }
  return calls;
}

}  // namespace protrain::profile
