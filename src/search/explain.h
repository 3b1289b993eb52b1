// What a search tells beside its plan. Internal to search/. Pure.
#pragma once
#include "search/trials.h"

namespace protrain {

// The best plan that differs from the chosen one in more than slot counts and distance. Its time is put in relation to
// `seconds`, the chosen one's without folding.
std::optional<RunnerUp> runner_up(const Space&, const Trials&, const Trial& chosen, double seconds);
// "device memory" or "host memory" where nearly all of it is taken and more would allow a plan with a smaller time
// bound, else the lane that works longest.
std::string binding_limit(const Space&, Candidates&, const MemoryLimits&, const Point& chosen,
                          const std::array<double, kLanes>& busy);

}  // namespace protrain
