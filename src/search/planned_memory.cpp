#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "plan/plan_json.h"
#include "schedule/layout.h"
#include "search/search.h"

namespace protrain {

PlannedMemory plan_memory(const ModelSpec& spec, const RunShape& shape, const Profile& profile, Plan plan) {
  PlannedMemory memory;
  memory.chunks = make_chunks(spec, plan.chunk_bytes, shape.compute);
  memory.layout = layout(spec, memory.chunks, shape, profile, plan);
  memory.plan = std::move(plan);
  memory.plan.predicted_device_bytes = memory.layout.bytes(Tier::kDevice);
  return memory;
}

std::string describe(const ModelSpec& spec, const PlannedMemory& memory) {
  const Plan& plan = memory.plan;
  const auto body = static_cast<int>(std::ranges::count(memory.chunks, BlockKind::kLayer, &Chunk::kind));
  const auto on_host = std::ranges::count(plan.place, UpdatePlace::kCpu);
  std::string text = plan.n_persist >= body ? "all weights on the device"
                                            : fmt::format("{} of {} layer chunks streamed through {} slots",
                                                          body - plan.n_persist, body, plan.n_buffer);
  text += on_host == 0 ? ", all updates there"
                       : fmt::format(", updates of {} of {} chunks on the host", on_host, memory.chunks.size());
  std::map<Activation, int> modes;
  for (std::size_t block = 0; block < spec.blocks.size(); ++block) {
    if (spec.blocks[block].kind == BlockKind::kLayer) ++modes[plan.activation[block]];
  }
  text += ", activations";
  const char* separator = " ";
  for (const auto& [mode, count] : modes) {
    text += modes.size() == 1 ? fmt::format(" {}", activation_name(mode))
                              : fmt::format("{}{} {}", std::exchange(separator, ", "), count, activation_name(mode));
  }
  if (plan.order == Order::kLayer) text += ", layer by layer";
  return text;
}

}  // namespace protrain
