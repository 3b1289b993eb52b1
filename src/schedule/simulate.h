// Predicts a step by simulating its schedule: the graph, lanes and order that the executor runs, with the rates of a
// machine. Pure; thread-safe.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "schedule/rates.h"
#include "schedule/trace.h"

namespace protrain {

// How long a task takes alone, in seconds. Two times where a call's depends on the load before it (recent_load.h).
struct TaskTime {
  double steady = 0, rested = 0;
  TaskTime(double seconds) : steady(seconds), rested(seconds) {}  // NOLINT: a time like any other
  TaskTime(double steady_in, double rested_in) : steady(steady_in), rested(rested_in) {}
  bool operator==(const TaskTime&) const = default;
};
// By id.
std::vector<TaskTime> task_times(const Schedule&, const ModelSpec&, const std::vector<Chunk>&, const StepShape&,
                                 const Rates&);

// Each lane runs its tasks in order, a task begins when its lane is free and all in `after` have ended (executor.h).
// While lanes overlap, a task of lane a proceeds at 1 / (product over the other working lanes b of slowdown[a][b]).
// `load`: of the compute lane when the first task begins.
Timeline simulate(const Schedule&, std::span<const TaskTime>, const Rates&, double load = 1);

// A step in the steady state.
struct Prediction {
  double step_seconds = 0;            // with Rates::between_steps
  std::array<double, kLanes> busy{};  // seconds in which the lane works
  double compute_waits = 0;           // step_seconds without between_steps and without busy[kCompute]
  Schedule schedule;                  // of the step that was simulated
  Timeline timeline;
};

struct PredictOptions {
  bool clip = true;
  // For the search: more than three micro-batches are not walked; the schedule and timeline are then those of three. In
  // kMicroBatch order each of the others takes as long as the second one does. In kLayer order each of the three stands
  // for a third of all: its calls take so many times as long, weights and gradients do not. Not where saved sets or
  // inputs visit the host in kLayer order: there all are walked.
  bool fold = false;
  BatchShape batch = {};  // a planned shape; of 0 tokens: the largest one
};

// The second of two equal steps: under the updates that the first leaves pending, with what it leaves in the slots.
// Its load at the beginning is that at its end (two rounds, where a step is so short that it matters).
Prediction predict(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Profile&, const Plan&,
                   const Layout&, const Rates&, const PredictOptions& = {});

}  // namespace protrain
