#include <algorithm>

#include "base/error.h"
#include "schedule/simulate.h"

namespace protrain {

namespace {

// Finds each call once: most tasks of a graph are the same few calls of equal blocks.
class CallSeconds {
 public:
  CallSeconds(const ModelSpec& spec, const StepShape& step, const Rates& rates)
      : spec_(spec), step_(step), rates_(rates), found_(spec.blocks.size() * kCallsOfBlock, -1) {
    for (std::size_t block = 0; block < spec.blocks.size(); ++block) {
      std::size_t first = 0;
      while (spec.blocks[first].trace != spec.blocks[block].trace) ++first;
      first_.push_back(first);
    }
  }

  TaskTime of(const Task& task) {
    const Invocation& what = task.what;
    const std::size_t block = first_.at(static_cast<std::size_t>(what.block));
    const bool graph_alone = makes_graph_alone(task);
    const std::size_t pass = graph_alone ? kPasses : static_cast<std::size_t>(what.pass);
    TaskTime& time = found_[block * kCallsOfBlock + pass * 2 + static_cast<std::size_t>(what.light)];
    if (time.steady < 0) {
      const Rates::Call& call =
          rates_.find({spec_.blocks[block].trace, what.pass, what.light, step_.batch, step_.graph == Graph::kTrain});
      const double part = graph_alone ? call.graph_alone : 1;
      time = {call.steady * part, call.rested * part};
    }
    return time;
  }

 private:
  static constexpr std::size_t kPasses = 3;
  static constexpr std::size_t kCallsOfBlock = 2 * (kPasses + 1);  // passes and the graph alone x light or not

  const ModelSpec& spec_;
  const StepShape& step_;
  const Rates& rates_;
  std::vector<std::size_t> first_;  // by block: the first of its trace
  std::vector<TaskTime> found_;     // by first block and call; -1: not asked yet
};

}  // namespace

std::vector<TaskTime> task_times(const Schedule& schedule, const ModelSpec& spec, const std::vector<Chunk>& chunks,
                                 const StepShape& step, const Rates& rates) {
  CallSeconds calls(spec, step, rates);
  const auto elements = [&](const Task& task) {
    return static_cast<double>(chunks.at(static_cast<std::size_t>(task.chunk)).elements);
  };
  std::vector<TaskTime> times;
  times.reserve(schedule.tasks.size());
  for (const Task& task : schedule.tasks) {
    switch (task.op) {
      case Op::kRunBlock: times.push_back(calls.of(task)); break;
      case Op::kCopy:
        PROTRAIN_CHECK(task.lane == Lane::kH2d || task.lane == Lane::kD2h, "{} on lane {}", task.name,
                       lane_name(task.lane));
        times.push_back(
            (task.lane == Lane::kH2d ? rates.h2d : rates.d2h).of(static_cast<double>(task.access.at(0).range.bytes)));
        break;
      case Op::kRound: times.push_back(rates.round.of(elements(task))); break;
      case Op::kNorm: times.push_back(rates.norm.of(elements(task))); break;
      case Op::kFinishNorm: times.push_back(rates.finish_norm); break;
      case Op::kUpdate:
        times.push_back((task.lane == Lane::kCpuUpdate ? rates.cpu_update : rates.gpu_update).of(elements(task)));
        break;
      default: times.emplace_back(0);  // a kind that the program has registered: nobody has timed it
    }
  }
  return times;
}

}  // namespace protrain
