#include "runtime/weight_loads.h"

#include <fmt/core.h>

namespace protrain {

bool is_weight_load(const Task& task) {
  return task.op == Op::kCopy && task.chunk >= 0 && task.access.at(1).range.tier == Tier::kDevice;
}

std::string missing_load(const Schedule& schedule, const StepShape& step, const ModelSpec& spec,
                         const std::vector<Chunk>& chunks, const Plan& plan) {
  const std::vector<Id> slot = slots(chunks, plan).weight;
  const std::vector<std::vector<ChunkUse>> uses = chunk_uses(spec, chunks);
  std::vector<bool> current;  // by chunk: its copy is of the weight as it is at this place
  std::vector<bool> waits(chunks.size(), false);
  for (const Id chunk : step.pending) waits.at(chunk) = true;
  std::vector<Id> held = step.slots;  // by slot
  held.resize(chunks.size(), -1);
  current.reserve(chunks.size());
  for (Id chunk = 0; chunk < static_cast<Id>(chunks.size()); ++chunk) {
    current.push_back(!waits[chunk] && (slot[chunk] < 0 || held[slot[chunk]] == chunk));
  }
  for (const Task& task : schedule.tasks) {
    if (task.op == Op::kUpdate && task.lane == Lane::kCpuUpdate) {
      waits.at(task.chunk) = current.at(task.chunk) = false;
    } else if (is_weight_load(task)) {
      if (waits.at(task.chunk)) return fmt::format("{} comes before the chunk's update", task.name);
      current[task.chunk] = true;
      if (slot[task.chunk] >= 0) held[slot[task.chunk]] = task.chunk;
    } else if (task.op == Op::kRunBlock) {
      for (const ChunkUse& use : uses.at(task.what.block)) {
        if (!current[use.chunk]) return fmt::format("{} finds an old weight of chunk {}", task.name, use.chunk);
        if (slot[use.chunk] >= 0 && held[slot[use.chunk]] != use.chunk) {
          return fmt::format("{} finds chunk {} where chunk {} should be", task.name, held[slot[use.chunk]], use.chunk);
        }
      }
    }
  }
  return "";
}

}  // namespace protrain
