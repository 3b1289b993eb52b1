#include "schedule/expansion.h"
#include "schedule/schedule.h"

namespace protrain {

std::string_view lane_name(Lane lane) {
  switch (lane) {
    case Lane::kCompute: return "compute";
    case Lane::kH2d: return "h2d";
    case Lane::kD2h: return "d2h";
    case Lane::kCpuUpdate: return "cpu_update";
    case Lane::kGpuUpdate: return "gpu_update";
    case Lane::kDiskRead: return "disk_read";
    case Lane::kDiskWrite: return "disk_write";
  }
  return "?";
}

std::string_view op_name(Op op) {
  switch (op) {
    case Op::kRunBlock: return "run block";
    case Op::kCopy: return "copy";
    case Op::kRound: return "round";
    case Op::kNorm: return "norm";
    case Op::kFinishNorm: return "finish norm";
    case Op::kUpdate: return "update";
  }
  return "?";
}

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
