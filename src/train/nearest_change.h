// What would have fitted where a plan does not. One thread.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "search/search.h"
#include "train/config.h"
#include "train/plan_knobs.h"
#include "train/run_plan.h"

namespace protrain {

// What there is of memory, the user's limits aside: of the device for the arena, of the host for everything.
struct Room {
  Bytes device = 0, host = 0;
};

struct Misfit {
  const TrainConfig& config;
  const PlanKnobs& knobs;
  const ModelSpec& spec;
  const RunShape& shape;
  const MemoryLimits& limits;
  const SearchSpace& space;
  const Shortfall& missing;  // of the leanest plan
  std::optional<Room> room;  // of a machine that is there; none: `protrain plan` may be told of more
  // Of a machine that `protrain plan` was told of, what it has in all: a limit above that needs more of the machine
  // too.
  std::optional<MemoryThere> told = std::nullopt;
  // Whether any plan of a space fits. Errors of a shape that cannot be tried are a no.
  std::function<bool(const RunShape&, const MemoryLimits&, const SearchSpace&)> fits;
};

// A run measures what its process and its libraries take anew at each start: a limit that is named has so much more.
inline constexpr Bytes kMeasuredAnew = 16 * kMiB;

// The first of these that fits, in the order in which a user would rather give up something: the knobs that were set,
// rows of the micro-batch (the update keeps its samples; as far as ten seconds of trying go), a limit on memory, a
// smaller model. A few words for the end of a message.
std::string nearest_change(const Misfit&);

}  // namespace protrain
