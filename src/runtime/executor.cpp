#include "runtime/executor.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/executor_lives.h"

namespace protrain {

namespace {

// Keeps the kind of failure, adds where it happened.
[[noreturn]] void rethrow_naming(const std::string& task, const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", task, error.what()));
  } catch (const std::exception& error) {
    throw InternalError(fmt::format("{}: {}", task, error.what()));
  } catch (...) {
    throw InternalError(fmt::format("{}: an exception of unknown type", task));
  }
}

}  // namespace

// Note [Two halves of an edge]: the event of a task exists only once its lane has recorded it, and a device wait for an
// event that is not recorded yet is no wait at all. So the consumer's host thread first waits until the producer's lane
// has issued (first half: cancellable, on `changed`), then enqueues the device wait (second half). The first half never
// waits for the device, so lanes run ahead of it. In a lane of the host itself the second half holds back its thread:
// it is not cancellable, but what it waits for has been issued and will end.
struct Executor::State {
  struct LaneState {
    std::unique_ptr<Stream> stream;
    std::thread thread;     // none for compute
    std::vector<Id> tasks;  // of this run
  };

  State(Device& device_in, const RunnerTable& runners_in, const Arenas& arenas_in)
      : device(device_in), runners(runners_in), lives(arenas_in) {}

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (LaneState& lane : lanes) {
      if (lane.thread.joinable()) lane.thread.join();
    }
  }

  Stream& stream(Lane lane) {
    auto& stream = lanes[static_cast<std::size_t>(lane)].stream;
    if (!stream) stream = is_host_lane(lane) ? device.host_stream(lane_name(lane)) : device.stream(lane_name(lane));
    return *stream;
  }

  // Before anything can fail: whoever settles after a failure reads these.
  void reset_books(std::size_t tasks) {
    started.assign(tasks, false);
    completed.assign(tasks, false);
  }

  Event record_start() {
    try {
      Event start = stream(Lane::kCompute).record();
      start.wait();  // or a task of another stream might begin before it
      return start;
    } catch (...) {
      lanes[static_cast<std::size_t>(Lane::kCompute)].stream.reset();  // as in throw_first_error()
      throw;
    }
  }

  void prepare(const Schedule& next, const RunOptions& wanted) {
    const auto count = static_cast<Id>(next.tasks.size());
    for (LaneState& lane : lanes) lane.tasks.clear();
    for (Id id = 0; id < count; ++id) {
      const Task& task = next.tasks[id];
      for (const Id earlier : task.after)
        PROTRAIN_CHECK(earlier >= 0 && earlier < id, "{} waits for {}", task.name, earlier);
      lanes[static_cast<std::size_t>(task.lane)].tasks.push_back(id);
    }
    for (int i = 0; i < kLanes; ++i) {
      const auto lane = static_cast<Lane>(i);
      if (lanes[i].tasks.empty()) continue;
      stream(lane);
      if (lane != Lane::kCompute && !lanes[i].thread.joinable())
        lanes[i].thread = std::thread([this, lane] { serve(lane); });
    }
    const std::lock_guard lock(mutex);
    schedule = &next;
    options = &wanted;
    issued.assign(count, false);
    began.assign(count, Event());
    ended.assign(count, Event());
    cancelled = abandoned = update_issued = false;
    failed_task = -1;
    error = nullptr;
    busy = 0;
    ++generation;
    for (int i = 0; i < kLanes; ++i) {
      const bool joins = static_cast<Lane>(i) != Lane::kCompute && !lanes[i].tasks.empty();
      lane_generation[i] = joins ? generation : 0;
      busy += joins ? 1 : 0;
    }
  }

  // A lane's host thread: its part of one run after the other.
  void serve(Lane lane) {
    std::uint64_t done = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      const std::uint64_t& wanted = lane_generation[static_cast<std::size_t>(lane)];
      changed.wait(lock, [&] { return stopping || wanted > done; });
      if (stopping) return;
      done = wanted;
      lock.unlock();
      run_lane(lane);
      lock.lock();
      if (--busy == 0) changed.notify_all();
    }
  }

  void run_lane(Lane lane) noexcept {
    LaneState& own = lanes[static_cast<std::size_t>(lane)];
    for (const Id id : own.tasks) {
      try {
        if (!may_start(id)) return;
        issue(id, *own.stream);
      } catch (...) {
        fail_run(id, std::current_exception());
        return;
      }
    }
  }

  // First half of the task's edges. False: the run is cancelled.
  bool may_start(Id id) {
    const Task& task = schedule->tasks[id];
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] {
      return cancelled ||
             std::all_of(task.after.begin(), task.after.end(), [&](Id earlier) { return issued[earlier]; });
    });
    if (task.lane == Lane::kCompute && options->abandon && !cancelled && !update_issued) {
      lock.unlock();
      const bool wanted = options->abandon();  // may take its time: no lane waits for it
      lock.lock();
      // Asked again: an update may have started meanwhile, and then the step must end.
      if (wanted && !cancelled && !update_issued) {
        abandoned = cancelled = true;
        changed.notify_all();
      }
    }
    if (!cancelled && task.op == Op::kUpdate && !task.pending) update_issued = true;
    return !cancelled;
  }

  void issue(Id id, Stream& stream) {
    const Task& task = schedule->tasks[id];
    if (options->before_task) options->before_task(id, task);
    for (const Id earlier : task.after) {
      // Second half; its own stream is in order anyway. `ended` of an issued task no longer changes.
      if (schedule->tasks[earlier].lane != task.lane) stream.wait(event_of(earlier));
    }
    lives.begin(task, stream);
    Event begin;
    if (options->trace) begin = stream.record();
    TaskRunner* runner = runners[static_cast<std::size_t>(task.op)];
    PROTRAIN_CHECK(runner != nullptr, "nothing runs \"{}\"", op_name(task.op));
    note_started(id);
    runner->run(task, stream);
    lives.end(task, stream);
    Event end = stream.record();
    const std::lock_guard lock(mutex);
    began[id] = std::move(begin);
    ended[id] = std::move(end);
    issued[id] = true;
    changed.notify_all();
  }

  void note_started(Id id) {
    const std::lock_guard lock(mutex);
    started[id] = true;
  }

  Event event_of(Id id) {
    const std::lock_guard lock(mutex);
    return ended[id];
  }

  void fail_run(Id task, std::exception_ptr cause) noexcept {
    const std::lock_guard lock(mutex);
    if (!error) {
      error = std::move(cause);
      failed_task = task;
    }
    cancelled = true;
    changed.notify_all();
  }

  void wait_for_lanes() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return busy == 0; });
  }

  // Waits for all that was issued, whatever happened to it.
  void synchronize() {
    for (int i = 0; i < kLanes; ++i) {
      if (lanes[i].tasks.empty()) continue;
      try {
        lanes[i].stream->synchronize();
      } catch (...) {
        fail_run(lanes[i].tasks.back(), std::current_exception());
      }
    }
  }

  // Once everything has ended.
  void note_completed() {
    completed = issued;
    for (Id id = 0; error && id < static_cast<Id>(issued.size()); ++id) {
      if (!issued[id]) continue;
      try {
        ended[id].wait();
      } catch (...) {
        completed[id] = false;
      }
    }
    const std::string_view left = lives.end_all();
    PROTRAIN_CHECK(error || abandoned || left.empty(), "what {} acquires no task releases", left);
  }

  // Failed work shows up late: in a synchronisation, or in a later call on its stream. Its own event tells which it
  // was.
  [[noreturn]] void throw_first_error() {
    Id task = failed_task;
    std::exception_ptr cause = error;
    for (Id id = 0; id < static_cast<Id>(issued.size()); ++id) {
      if (!issued[id] || completed[id]) continue;
      try {
        ended[id].wait();
      } catch (...) {
        task = id;
        cause = std::current_exception();
        break;
      }
    }
    // An error stays with its stream: the next run gets new ones.
    for (LaneState& lane : lanes) lane.stream.reset();
    rethrow_naming(schedule->tasks[task].name, cause);
  }

  Timeline timeline(const Event& start) {
    Timeline result;
    for (Id id = 0; id < static_cast<Id>(issued.size()); ++id) {
      if (!issued[id]) continue;
      const Span span{id, schedule->tasks[id].lane, device.seconds_between(start, began[id]),
                      device.seconds_between(start, ended[id])};
      result.seconds = std::max(result.seconds, span.end_seconds);
      result.spans.push_back(span);
    }
    return result;
  }

  Device& device;
  RunnerTable runners;                  // fixed while a run goes on
  std::array<LaneState, kLanes> lanes;  // fixed while a run goes on
  Lives lives;                          // of this run
  std::vector<bool> completed;          // written between runs

  std::mutex mutex;  // guards everything below while a run goes on
  std::condition_variable changed;
  bool stopping = false;
  std::uint64_t generation = 0;
  std::array<std::uint64_t, kLanes> lane_generation{};  // the run that the lane takes part in
  int busy = 0;                                         // lane threads that have not ended their part
  const Schedule* schedule = nullptr;                   // fixed while a run goes on, like options
  const RunOptions* options = nullptr;
  std::vector<bool> started, issued;
  std::vector<Event> began,
      ended;               // one an instance of a task, dropped by the next run: never shared, never reused early
  bool cancelled = false;  // no task may start any more
  bool abandoned = false;
  bool update_issued = false;
  Id failed_task = -1;
  std::exception_ptr error;
};

bool is_host_lane(Lane lane) { return lane == Lane::kCpuUpdate || lane == Lane::kDiskRead || lane == Lane::kDiskWrite; }

Executor::Executor(Device& device, const RunnerTable& runners, const Arenas& arenas)
    : state_(std::make_unique<State>(device, runners, arenas)) {}

Executor::~Executor() = default;

void Executor::set_runner(Op op, TaskRunner& runner) { state_->runners.at(static_cast<std::size_t>(op)) = &runner; }

const std::vector<bool>& Executor::started() const { return state_->started; }

const std::vector<bool>& Executor::completed() const { return state_->completed; }

Stream& Executor::stream(Lane lane) { return state_->stream(lane); }

RunResult Executor::run(const Schedule& schedule, const RunOptions& options) {
  State& state = *state_;
  state.reset_books(schedule.tasks.size());
  Event start;
  if (options.trace) start = state.record_start();
  state.prepare(schedule, options);
  state.changed.notify_all();
  state.run_lane(Lane::kCompute);
  state.wait_for_lanes();
  state.synchronize();
  state.note_completed();

  RunResult result;
  result.abandoned = state.abandoned;
  if (state.error) state.throw_first_error();
  if (options.trace) result.timeline = state.timeline(start);
  state.ended.clear();
  state.began.clear();
  return result;
}

}  // namespace protrain
