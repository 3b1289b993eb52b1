// What ran when. The same format for measured and simulated steps: Chrome trace JSON (chrome://tracing, Perfetto).
#pragma once
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace protrain {

struct Span {
  Id task = -1;
  Lane lane = Lane::kCompute;
  double begin_seconds = 0;  // from the start of the step
  double end_seconds = 0;
};

struct Timeline {
  std::vector<Span> spans;  // in task order
  double seconds = 0;
};

std::string chrome_trace(const Schedule&, const Timeline&);

}  // namespace protrain
