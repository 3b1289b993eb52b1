// Plans made from few numbers.
#include <algorithm>

#include "base/error.h"
#include "plan/plan.h"

namespace protrain {

std::vector<Activation> interleave(const ModelSpec& spec, const ActivationCounts& counts, int swap_interval) {
  std::vector<Id> layers;
  for (Id block = 0; block < static_cast<Id>(spec.blocks.size()); ++block) {
    if (spec.blocks[block].kind == BlockKind::kLayer) layers.push_back(block);
  }
  const auto n = static_cast<int>(layers.size());
  if (swap_interval < 1) fail(ExitCode::kConfig, "plan: swap_interval {}, must be at least 1", swap_interval);
  for (const auto& [name, count] :
       {std::pair("n_swap", counts.swap), std::pair("n_keep_light", counts.keep_light),
        std::pair("n_recompute", counts.recompute), std::pair("n_recompute_host", counts.recompute_host)}) {
    if (count < 0 || count > n) fail(ExitCode::kConfig, "plan: {} {}, must be 0 to {} (layers)", name, count, n);
  }
  const int sum = counts.swap + counts.keep_light + counts.recompute + counts.recompute_host;
  if (sum > n) {
    fail(ExitCode::kConfig,
         "plan: n_swap {} + n_keep_light {} + n_recompute {} + n_recompute_host {} = {}, but this model has {} layers",
         counts.swap, counts.keep_light, counts.recompute, counts.recompute_host, sum, n);
  }

  std::vector<Activation> modes(spec.blocks.size(), Activation::kKeep);
  std::vector<bool> swapped(layers.size(), false);
  const int interval = counts.swap > 1 ? std::clamp((n - 1) / (counts.swap - 1), 1, swap_interval) : 1;
  for (int i = 0; i < counts.swap; ++i) {
    swapped[i * interval] = true;
    modes[layers[i * interval]] = Activation::kSwap;
  }
  std::vector<Activation> others(counts.recompute_host, Activation::kRecomputeHost);
  others.insert(others.end(), counts.recompute, Activation::kRecompute);
  others.insert(others.end(), counts.keep_light, Activation::kKeepLight);
  others.resize(n - counts.swap, Activation::kKeep);
  auto next = others.begin();
  for (int i = 0; i < n; ++i) {
    if (!swapped[i]) modes[layers[i]] = *next++;
  }
  return modes;
}

Plan resident_plan(const ModelSpec& spec, const RunShape& shape, Bytes chunk_bytes, Activation mode) {
  Plan plan;
  plan.chunk_bytes = chunk_bytes;
  plan.activation.assign(spec.blocks.size(), mode);
  for (const Chunk& chunk : make_chunks(spec, chunk_bytes, shape.compute)) {
    plan.n_persist += chunk.kind == BlockKind::kLayer ? 1 : 0;
    plan.place.push_back(UpdatePlace::kResident);
  }
  return plan;
}

}  // namespace protrain
