#include "schedule/expansion.h"
#include "schedule/schedule.h"

namespace protrain {

Schedule expand(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape, const Profile& profile,
                const Plan& plan, const Layout& layout, const StepShape& step) {
  const Facts facts(spec, chunks, shape, profile, plan);
  Expansion expansion(facts, layout, step);
  Schedule schedule;
  schedule.slots_after = add_graph(expansion);
  schedule.tasks = expansion.sketch.finish();
  return schedule;
}

}  // namespace protrain
